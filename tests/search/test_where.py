import pytest
from hypothesis import given
from hypothesis import strategies as st

from selhn.search.items import Record
from selhn.search.where import Comparison, Not, Several, read_filter

RECORD = Record(
    "trip/a.jpg",
    ("a dog",),
    {"folder": "trip", "year": 2021, "tags": ["dog", 3], "exif": {"iso": 100.0}, "raw": False, "none": None, "a b": 1},
)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("folder = trip", True),
        ('folder = "trip"', True),
        ("folder == 'trip'", True),
        ("folder != trip", False),
        ("year >= 2021 and year < 2022", True),
        ("year > 2021 or folder=trip", True),
        ("not (year > 2020 and folder = trip)", False),
        ("not not folder = trip", True),
        ("year in (2020, 2021)", True),
        ('folder in ["home", "trip"]', True),
        ("tags contains dog", True),
        ("tags contains 3", True),
        ("tags contains cat", False),
        ("folder contains ri", True),
        ('id like "trip/*.jpg"', True),
        ("id like trip/?.png", False),
        ("exif.iso <= 100", True),
        ("exif.lens = x", False),
        ("missing = x", False),
        ("missing != x", True),
        ("missing < 3", False),
        ("raw = false", True),
        ("raw = 0", False),
        ("none = null", True),
        ("year = '2021'", False),
        ("year < trip", False),
        ('"a b" = 1', True),
        ('folder = "tr\\ip"', True),
        ("year = 2.021e3", True),
        ({"folder": "trip"}, True),
        ({"folder": ["home", "trip"], "year": {">=": 2000, "<": 2021}}, False),
        ({"year": {"in": [1, 2021]}}, True),
    ],
)
def test_what_holds(where, holds):
    assert read_filter(where)(RECORD) is holds


def test_or_binds_less_than_and():
    one, two, three = (Comparison(name, "=", 1) for name in "abc")
    assert read_filter("a=1 or b=1 and not c=1") == Several((one, Several((two, Not(three)))), every=False)


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("", "cannot be read at its end: the name of a field"),
        ("folder", "cannot be read at its end: one of = != <"),
        ("folder =", "cannot be read at its end: a value"),
        ("folder = trip year = 3", "cannot be read at 'year': `and` or `or`"),
        ("folder = 'trip", "close the quotes"),
        ("(folder = trip", r"`\)` is expected"),
        ("folder is trip", "cannot be read at 'is'"),
        ("year in 3", r"`\(` is expected"),
        ("folder = trip; drop", "cannot be read at 'drop'"),
        ("(" * 100 + "a=1" + ")" * 100, "brackets deep"),
        ("a = " + "x" * 20_000, "at most 10,000 are read"),
        ({}, "where is {}: write a filter"),
        ({"year": {"~": 3}}, "'~' for year is not an operator"),
        ({"year": {"in": 3}}, "`in` takes a list of values"),
    ],
)
def test_what_cannot_be_read(where, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_filter(where)


@given(st.text(alphabet="ab =!<>()[],'\"\\.1e-notrdi", max_size=40))
def test_any_words_are_a_filter_or_one_sentence(words):
    try:
        holds = read_filter(words)(RECORD)
    except ValueError as error:
        holds = "filter" in str(error)
    assert holds in (True, False)


@pytest.mark.parametrize("word", ["01", "007", "-00", "1e", "0x1"])
def test_what_only_looks_like_a_number_is_a_word(word):
    assert read_filter(f"a = {word}")(Record("x", (), {"a": word}))
