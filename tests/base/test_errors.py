import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import selhn
from selhn.base.errors import Damaged, Locked, MissingExtra, NotFound, SelhnError, pip_install


@pytest.mark.parametrize(
    ("kind", "also"),
    [(NotFound, KeyError), (MissingExtra, ImportError), (Damaged, ValueError), (Locked, ValueError)],
)
def test_an_error_is_also_what_python_programs_expect(kind, also):
    with pytest.raises(also) as caught:
        raise kind("there is no item 'x': look at index.ids()")
    assert isinstance(caught.value, SelhnError)
    assert str(caught.value) == "there is no item 'x': look at index.ids()"


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        ('{"url": "file:///a/b%20c", "dir_info": {}}', "pip install '/a/b c[serve]'"),
        ('{"url": "file:///a/b", "dir_info": {"editable": true}}', "pip install -e '/a/b[serve]'"),
        (
            '{"url": "https://host/selhn", "vcs_info": {"vcs": "git"}}',
            "pip install 'selhn[serve] @ git+https://host/selhn'",
        ),
        (
            '{"url": "file:///a/selhn.whl", "archive_info": {}}',
            "pip install 'selhn[serve] @ file:///a/selhn.whl'",
        ),
        (None, "pip install '.[serve]' in a checkout of selhn"),
        ("{", "pip install '.[serve]' in a checkout of selhn"),
    ],
)
def test_an_extra_is_installed_from_where_selhn_came_from(origin, line, monkeypatch):
    known = SimpleNamespace(read_text=lambda name: origin)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: known)
    assert pip_install("serve") == line


def test_no_message_names_a_package_that_cannot_be_installed():
    for path in Path(selhn.__file__).parent.rglob("*.py"):
        assert not re.search(r"pip install.{0,20}selhn\[(?!\{)", path.read_text(encoding="utf-8")), path
