"""Filters in the words of Milvus: they hold wherever ours hold, and no value becomes part of them."""

import re

import pytest
import torch
from model_cases import make_model

from selhn.search import Index, Item
from selhn.search.stores.milvus_expression import milvus_expression
from selhn.search.where import read_filter

HOSTILE = [
    'x" or key != "',
    "x' or 'a' == 'a",
    "\\",
    '\\"',
    '"',
    '"]',
    '") or exists record["metadata"]["other"] or (key == "',
    "a\nb",
    "a\x00b",
    "tab\tbed",
    "100%",
    "_",
    "%",
    "{key}",
    "{{x}}",
    "$meta",
    "é 中文 😀",
    "\u202eevil",
    " ",
    "",
    "null",
    "true",
    "//",
    "/* */",
]
META = 'record["metadata"]'


@pytest.mark.parametrize(
    ("where", "expression"),
    [
        ("year >= 220", f'({META}["year"] >= 220 or {META}["year"] >= 220.0)'),
        (
            "year = 2020",
            f'({META}["year"] == 2020 or {META}["year"] == 2020.0 or {META}["year"] like "2020%")',
        ),
        ("year = 2020.5", f'{META}["year"] == 2020.5'),
        ("year > 2020.5", f'({META}["year"] > 2020 or {META}["year"] > 2020.5)'),
        ("year <= -2.5", f'({META}["year"] <= -2 or {META}["year"] <= -2.5)'),
        ('folder = "a\\"b"', f'{META}["folder"] == "a\\"b"'),
        ({"folder": "a\\"}, f'{META}["folder"] == "a\\\\"'),
        ("raw = false", f'{META}["raw"] == false'),
        ("year in (x, 2.5)", f'({META}["year"] == "x" or {META}["year"] == 2.5)'),
        ("id = x", f'({META}["id"] == "x" or record["id"] == "x")'),
        ("tags contains 3", f'(json_contains({META}["tags"], 3) or json_contains({META}["tags"], 3.0))'),
        ("tags contains dog", f'(json_contains({META}["tags"], "dog") or {META}["tags"] like "%dog%")'),
        ("file like 'IMG*.jp?g'", f'{META}["file"] like "IMG%"'),
        ("a = x and (b = y or c = z)", f'({META}["a"] == "x" and ({META}["b"] == "y" or {META}["c"] == "z"))'),
        ("not not a = x", f'{META}["a"] == "x"'),
        ("a = x and not b = 2", f'{META}["a"] == "x"'),
        ({"a": []}, 'key == ""'),
        ("a = 2019-06", f'({META}["a"] == "2019-06" or {META}["a"] like "2019-06%")'),
        ("a <= 2019-6", f'({META}["a"] <= "2019-6" or {META}["a"] < "2019-06" or {META}["a"] like "2019-06%")'),
        (
            "a > 2019-06-14T15",
            f'({META}["a"] > "2019-06-14T15" or {META}["a"] > "2019-06-14" or {META}["a"] like "2019-06-14%")',
        ),
        # What Milvus is not asked, for it would answer otherwise, or cannot be asked safely.
        ("a = 1 or not b = 2", ""),
        ("a != 1", ""),
        ("exif.iso < 9", ""),
        ('"a b" = 1', ""),
        ("a = null", ""),
        ("a in (1, null)", ""),
        ("file like '*.jpg'", ""),
        ("file like 'a_b*'", ""),
        ("tags contains 'a%'", ""),
        ({'a"] == 1 or record["x': 1}, ""),
        ({"a\\": 1}, ""),
        ({"a": "b\nc"}, ""),
        ({"a": float("inf")}, ""),
        ({"a": 2**60}, ""),
        ({"a": ["x"] * 501}, ""),
    ],
)
def test_expressions(where, expression):
    assert milvus_expression(read_filter(where)) == expression


def test_no_filter_is_everything():
    assert milvus_expression(None) == ""


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_stays_between_its_quotes(value):
    for operator in ("=", "contains", "like", "<"):
        expression = milvus_expression(read_filter({"field": {operator: value}}))
        outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
        assert set(re.findall(r"\w+", outside)) <= {"record", "json_contains", "or", "like"}


@pytest.fixture
def hostile(uri):
    """The same items in Milvus and in memory, with such values, names of fields and ids."""
    model, items = make_model("rvse"), []
    for number, value in enumerate(HOSTILE):
        metadata = {"value": value, "tags": [value, number], value or "empty": number, "number": number}
        items.append(Item(f"{number}{value}", torch.rand(2, 12), None, (f"word{number}",), metadata))
    remote, exact = Index.create(model, uri), Index.create(model)
    for index in (remote, exact):
        index.add(items)
    return remote, exact


def test_hostile_values_find_what_they_find_in_memory(hostile, same_answers):
    remote, exact = hostile
    for number, value in enumerate(HOSTILE):
        own = f"{number}{value}"
        assert [hit.id for hit in same_answers(remote, exact, "word1", 50, where={"value": value})] == [own]
        assert [hit.id for hit in same_answers(remote, exact, "word1", 50, where={"tags": {"contains": value}})] == [
            own
        ]
        assert [hit.id for hit in same_answers(remote, exact, "word1", 50, where={value or "empty": number})] == [own]
        assert [hit.id for hit in same_answers(remote, exact, "word1", 50, where={"id": own})] == [own]
        same_answers(remote, exact, "word1", 50, where={"value": {"contains": value}})
        same_answers(remote, exact, "word1", 50, where={"value": {">": value}})
        same_answers(remote, exact, "word1", 50, where={"value": {"!=": value}})
        same_answers(remote, exact, "word1", 50, where={"id": {"like": f"{own}*"}})
        assert remote.get(own) == exact.get(own)
    remote.delete([f"{number}{value}" for number, value in enumerate(HOSTILE)])
    assert len(remote) == remote.num_texts == 0


def test_types_are_told_apart_as_in_memory(uri, same_answers):
    model = make_model("rvse")
    values = [1, 1.0, True, "1", [1], {"a": 1}, None, "true", 0, False, 2, "x", -1, 1.5, 10**12, [True], ["1", "x"]]
    items = [Item(f"i{n}", torch.rand(2, 12), metadata={"v": value}) for n, value in enumerate(values)]
    items.append(Item("none", torch.rand(1, 12)))
    remote, exact = Index.create(model, uri), Index.create(model)
    for index in (remote, exact):
        index.add(items)
    asked = [1, 1.0, True, "1", None, 0, False, "x", 1.5, 10**12]
    for operator in ("=", "!=", "<", "<=", ">", ">=", "contains", "like"):
        for value in asked:
            same_answers(remote, exact, "word1", 50, where={"v": {operator: value}})
    same_answers(remote, exact, "word1", 50, where={"v": [1, "x"]})
    for words in ("v.a = 1", "not v = 1", "not v.a = 1", "not (v > 0 or v = x)", "v = 1 and not v = true"):
        same_answers(remote, exact, "word1", 50, where=words)
