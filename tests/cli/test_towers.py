"""`selhn towers` as a person meets it."""

from hashlib import sha256

import pytest
from tower_cases import MEMBER, of_pixels, write_wheel
from typer.testing import CliRunner

from selhn.base.errors import SelhnError
from selhn.cli.towers import towers_app
from selhn.towers import named
from selhn.towers.named import NamedTowers
from selhn.towers.wheel import WheelFile


def say(*words, answer=""):
    result = CliRunner().invoke(towers_app, [str(word) for word in words], input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("selhn.towers.towers.first_run", lambda folder, size: None)
    path, network = write_wheel(tmp_path, of_pixels()), of_pixels()
    sums = [sha256(content).hexdigest() for content in (path.read_bytes(), network)]
    source = WheelFile("package", "1.0", path.stat().st_size, sums[0], MEMBER, len(network), sums[1])
    row = NamedTowers("tiny", "a stand-in", "MIT", "English", 2_000_000, source, "tower_cases:complete")
    monkeypatch.setattr(named, "TOWERS", {"ready": named.TOWERS["ready"], "tiny": row})
    return path


def test_the_list_and_a_copy(wheel):
    assert "ready" in say()
    assert "not here: selhn towers get tiny" in say()
    assert "2 MB are kept in" in say("get", "tiny", "--from", wheel, "--yes")
    assert f"MIT; in {named.find('tiny').folder}" in say()
    assert say("get", "tiny").startswith("tiny is in")
    with pytest.raises(SelhnError, match="did you mean 'tiny'"):
        say("get", "tinny")
    with pytest.raises(SelhnError, match="part of selhn"):
        say("get", "ready")


def test_it_asks_first(wheel, monkeypatch):
    with pytest.raises(SelhnError, match="selhn towers get tiny --yes"):
        say("get", "tiny")
    always = type("stream", (), {"isatty": lambda self: True})()
    monkeypatch.setattr("selhn.cli.towers.sys", type("terminal", (), {"stdin": always, "stderr": always}))
    assert "Fetch them?" in say("get", "tiny", "--from", wheel, answer="n\n")
    assert not named.find("tiny").is_here
    assert "tiny is in" in say("get", "tiny", "--from", wheel, answer="y\n")
