import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import did_you_mean, plain, require_kind, require_settings


def test_did_you_mean():
    assert did_you_mean("Selhm", ["hn", "selhn"]) == "did you mean 'selhn'?"
    assert did_you_mean("zzz", ["hn", "selhn"]) == "choose from hn, selhn"
    assert did_you_mean("zzz", ["hn"], "see the list") == "see the list"
    assert did_you_mean("zzz", []) == "there are none"


def test_a_default_of_none_allows_everything():
    def build(tokenizer=None, dim=16):
        pass

    require_settings("mine", build, {"tokenizer": object(), "dim": 8})
    with pytest.raises(SelhnError):
        require_settings("mine", build, {"dim": "8"})


def test_require_settings():
    def make(dim, width=3):
        return dim, width

    require_settings("it", make, {"dim": 1, "width": 2})
    with pytest.raises(NotFound, match="it has no setting 'widht': did you mean 'width'"):
        require_settings("it", make, {"widht": 1})
    with pytest.raises(NotFound, match="choose from width"):
        require_settings("it", make, {"dim": 1}, only_optional=True)
    with pytest.raises(SelhnError, match="whole number"):
        require_settings("it", make, {"width": "wide"})


@pytest.mark.parametrize(
    ("kind", "good", "bad", "words"),
    [
        (bool, [True], [1, "yes"], "true or false"),
        (int, [3], [True, 3.0, "3", None], "a whole number"),
        (float, [3, 0.5], [True, "3"], "a number"),
        (str, ["a"], [1, None], "a word"),
        (Path, ["a", Path("a")], [1], "a path"),
        (tuple[int, ...], [(1, 2), [3]], [3, "ab", [True], ["a"]], "a list such as"),
        (tuple[int, int], [(1, 2), [3, 4]], [[3], [1, 2, 3], [1, "a"]], "a list such as"),
        (Sequence[float], [(1, 0.5)], [0.5, ["a"]], "a list such as"),
        (Literal["a", "b"], ["a"], ["c", 1], "one of 'a', 'b'"),
        (int | None, [3, None], ["a"], "a whole number or null"),
        (dict | None, [3, "any"], [], ""),
    ],
)
def test_require_kind(kind, good, bad, words):
    for value in good:
        require_kind("it", value, kind)
    for value in bad:
        with pytest.raises(SelhnError, match=f"it takes {words}"):
            require_kind("it", value, kind)


def test_numbers_of_numpy_are_numbers():
    given = [np.float32(0.5), np.int64(3), np.bool_(True), (np.int32(1), 2), [np.float64(0.1)], "word", None]
    assert [*map(plain, given)] == [0.5, 3, True, (1, 2), [0.1], "word", None]
    assert json.dumps([*map(plain, given)]) == '[0.5, 3, true, [1, 2], [0.1], "word", null]'
    array = np.zeros(3)
    assert plain(array) is array


def test_settings_are_checked_and_returned_as_numbers_of_python():
    def build(width: int, rate: float = 0.1, deep: bool = False): ...

    settings = require_settings(
        "it", build, {"width": np.int64(3), "rate": np.float32(0.5), "deep": np.bool_(1)}
    )
    assert [(type(value), value) for value in settings.values()] == [(int, 3), (float, 0.5), (bool, True)]
    with pytest.raises(SelhnError):
        require_settings("it", build, {"width": np.float32(0.5)})
