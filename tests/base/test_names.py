import pytest

from selhn.base.names import did_you_mean, require_settings


def test_did_you_mean():
    assert did_you_mean("Selhm", ["hn", "selhn"]) == "did you mean 'selhn'?"
    assert did_you_mean("zzz", ["hn", "selhn"]) == "there are hn, selhn"
    assert did_you_mean("zzz", []) == "there are none"


def test_require_settings():
    def make(dim, width=3):
        return dim, width

    require_settings("it", make, {"dim": 1, "width": 2})
    with pytest.raises(ValueError, match="it has no setting 'widht': did you mean 'width'"):
        require_settings("it", make, {"widht": 1})
