"""A package outside registers a model, and the command line finds it by its entry point."""

import sys

from typer.testing import CliRunner

from selhn.base.names import load_plugins
from selhn.cli import app
from selhn.models import MODELS

CODE = """
from selhn.models import register_model
from selhn.models.vse import rvse
register_model("from_outside", rvse, paper="Someone et al., 2030")
"""


def test_a_package_outside_is_found_by_its_entry_point(tmp_path, monkeypatch):
    (tmp_path / "outside_selhn.py").write_text(CODE)
    about = tmp_path / "outside_selhn-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-selhn\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[selhn.plugins]\noutside = outside_selhn\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    try:
        answer = CliRunner().invoke(app, ["models", "from_*"])
    finally:
        load_plugins.cache_clear()
        MODELS.pop("from_outside", None)
        sys.modules.pop("outside_selhn", None)
    assert "Someone et al., 2030" in answer.output
