from datetime import date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selhn.base.errors import NotFound, SelhnError
from selhn.search.filters import Comparison, Not, Several, require_fields
from selhn.search.items import Record
from selhn.search.where import read_filter

RECORD = Record(
    "trip/a.jpg",
    ("a dog",),
    {
        "folder": "trip",
        "year": 2021,
        "tags": ["dog", 3],
        "exif": {"iso": 100.0},
        "raw": False,
        "none": None,
        "a b": 1,
    },
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


TAKEN = {"taken": "2019-06-14 15:03:22", "modified": "2019-07-01T10:00:00.250000", "folder": "2019-06-14"}


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("taken = 2019", True),
        ("taken = '2019'", True),
        ("taken = 2018", False),
        ("taken != 2019", False),
        ("taken = 2019-06", True),
        ("taken = 2019-6", True),
        ('taken = "2019-06-14"', True),
        ("taken = 2019-06-15", False),
        ("taken = 2019-06-14T15:03", True),
        ('taken = "2019-06-14 15:03:22"', True),
        ("taken >= 2019-06 and taken < 2019-09", True),
        ("taken>=2019-07", False),
        ("taken < 2019-06", False),
        ("taken <= 2019-06", True),
        ("taken > 2019-06", False),
        ("taken > 2019", False),
        ("taken >= 2019", True),
        ("taken <= 2019-06-14", True),
        ("taken > 2018", True),
        ("taken in (2017, 2019-06)", True),
        ("taken in (2017, 2018-06)", False),
        ("not taken = 2019", False),
        ("taken like 2019-*", True),
        ("taken contains 06-14", True),
        ("modified = 2019-07-01T10:00:00", True),
        ("date = 2019-06", True),
        ("date = 2019-07", False),
        ("folder = 2019-06", False),
        ("folder = 2019-06-14", True),
        ("taken = june", False),
        ({"taken": 2019}, True),
        ({"taken": {">=": date(2019, 6, 14), "<": datetime(2019, 6, 14, 15, 3, 22)}}, False),
        ({"taken": date(2019, 6, 14)}, True),
        ({"taken": [date(2019, 6, 13), date(2019, 6, 14)]}, True),
    ],
)
def test_a_date_is_a_whole_year_month_or_day(where, holds):
    assert read_filter(where)(Record("a.jpg", (), TAKEN)) is holds


@pytest.mark.parametrize("value", ["june", "06/2019", "14.6.2019", "2019-13", "2019-02-40", "tomorrow"])
def test_a_date_is_not_compared_with_other_words(value):
    with pytest.raises(SelhnError, match=r"taken holds dates, .* write 2019, 2019-06, 2019-06-14"):
        read_filter(f"taken >= {value}")(Record("a.jpg", (), TAKEN))


def test_the_date_of_a_picture_that_no_camera_dated():
    only = Record("a.jpg", (), {"modified": "2020-01-02 03:04:05"})
    assert read_filter("date = 2020-01-02")(only)
    assert not read_filter("taken = 2020")(only)
    assert not read_filter("date = 2020")(Record("a.jpg", (), {"modified": ""}))
    assert read_filter("date = x")(Record("a.jpg", (), {"date": "x", "taken": "2020-01-02 03:04:05"}))


def test_an_unknown_field_names_those_that_there_are():
    with pytest.raises(
        NotFound, match=r"no item has a field 'foldr': did you mean 'folder'\? choose from id, date,"
    ):
        require_fields(read_filter("foldr = x"), [Record("a.jpg", (), TAKEN)])
    with pytest.raises(
        NotFound, match="no item has a field 'xyz': choose from id, date, taken, modified, folder"
    ):
        require_fields(read_filter("xyz = x"), [Record("a.jpg", (), TAKEN)])
    with pytest.raises(NotFound, match="no item has a field 'date': choose from id, folder"):
        require_fields(read_filter("date > 2020"), [Record("a.jpg", (), {"folder": "x"})])


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
        ("(" * 100 + "a=1" + ")" * 100, "nests brackets more than"),
        ("a = " + "x" * 20_000, "at most 10,000 are read"),
        ({}, "where is {}: write a filter"),
        ({"year": {}}, "where is .*: write a filter"),
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
