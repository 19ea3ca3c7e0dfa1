"""`selhn data`; what it does to folders is tested in tests/data and tests/test_cli.py."""

from typer.testing import CliRunner

from selhn.cli.data import data_app

RUNNER = CliRunner()


def test_the_commands():
    said = RUNNER.invoke(data_app, ["--help"]).output
    for command in ("check", "import", "concepts", "show"):
        assert command in said


def test_from_a_world_to_a_checked_folder(tmp_path):
    done = RUNNER.invoke(
        data_app, ["import", "world", str(tmp_path / "small"), "images=40"], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert (tmp_path / "small").is_dir()
    assert RUNNER.invoke(data_app, ["check", str(tmp_path / "small")]).exit_code == 0
    assert RUNNER.invoke(data_app, ["check", str(tmp_path / "nothing")]).exit_code == 1


def test_where_to(tmp_path):
    wrong = RUNNER.invoke(data_app, ["import", "world"])
    assert "missing destination: selhn data import SOURCE OUT" in str(wrong.exception)


def test_concepts(tmp_path):
    done = RUNNER.invoke(
        data_app, ["concepts", "world", str(tmp_path), "--number", "12"], catch_exceptions=False
    )
    assert done.output.startswith("12 concepts (")
    assert (tmp_path / "concepts.json").is_file()
