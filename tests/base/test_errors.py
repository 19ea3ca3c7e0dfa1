import pytest

from selhn.base.errors import Damaged, Locked, MissingExtra, NotFound, SelhnError


@pytest.mark.parametrize(
    ("kind", "also"), [(NotFound, KeyError), (MissingExtra, ImportError), (Damaged, ValueError), (Locked, ValueError)]
)
def test_an_error_is_also_what_python_programs_expect(kind, also):
    with pytest.raises(also) as caught:
        raise kind("there is no item 'x': look at index.ids()")
    assert isinstance(caught.value, SelhnError)
    assert str(caught.value) == "there is no item 'x': look at index.ids()"
