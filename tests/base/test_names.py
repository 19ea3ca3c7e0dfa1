from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import did_you_mean, require_kind, require_settings


def test_did_you_mean():
    assert did_you_mean("Selhm", ["hn", "selhn"]) == "did you mean 'selhn'?"
    assert did_you_mean("zzz", ["hn", "selhn"]) == "choose from hn, selhn"
    assert did_you_mean("zzz", ["hn"], "see the list") == "see the list"
    assert did_you_mean("zzz", []) == "there are none"


def test_a_default_of_none_allows_everything():
    def build(tokenizer=None, dim=16):
        pass

    require_settings("mine", build, {"tokenizer": object(), "dim": 8})
    with pytest.raises(SelhnError, match="dim of mine takes a whole number"):
        require_settings("mine", build, {"dim": "8"})


def test_require_settings():
    def make(dim, width=3):
        return dim, width

    require_settings("it", make, {"dim": 1, "width": 2})
    with pytest.raises(ValueError, match="it has no setting 'widht': did you mean 'width'"):
        require_settings("it", make, {"widht": 1})
    with pytest.raises(NotFound, match="choose from width"):
        require_settings("it", make, {"dim": 1}, only_optional=True)
    with pytest.raises(SelhnError, match="width of it takes a whole number, got 'wide'"):
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
