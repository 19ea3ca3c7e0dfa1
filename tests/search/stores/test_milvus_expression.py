"""Filters in the words of Milvus: they hold wherever ours hold, and no value becomes part of them."""

import re

import pytest
from store_cases import HOSTILE

from selhn.search.stores.milvus_expression import milvus_expression
from selhn.search.where import read_filter

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
        (
            "a = x and (b = y or c = z)",
            f'({META}["a"] == "x" and ({META}["b"] == "y" or {META}["c"] == "z"))',
        ),
        ("not not a = x", f'{META}["a"] == "x"'),
        ("a = x and not b = 2", f'{META}["a"] == "x"'),
        ({"a": []}, 'key == ""'),
        ("a = 2019-06", f'({META}["a"] == "2019-06" or {META}["a"] like "2019-06%")'),
        (
            "a <= 2019-6",
            f'({META}["a"] <= "2019-6" or {META}["a"] < "2019-06" or {META}["a"] like "2019-06%")',
        ),
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


def test_servers_before_2_4_know_no_pattern_within_a_text():
    where = read_filter("tags contains dog and year = 2.5 and (file like 'a*' or tags contains cat)")
    assert milvus_expression(where, finds_within=False) == f'{META}["year"] == 2.5'
    assert milvus_expression(read_filter("tags contains 3"), finds_within=False).startswith("(json_contains")
