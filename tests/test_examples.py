"""The examples run, and show what they say."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(tmp_path, monkeypatch, capsys):
    """`example(name, *arguments, **sizes)`: what it prints, in this process, with other sizes for its constants."""

    def run(name, *arguments, **sizes):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for constant, size in sizes.items():
            assert isinstance(getattr(module, constant), int)
            setattr(module, constant, size)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.chdir(tmp_path)
        module.main()
        return capsys.readouterr().out.splitlines()

    return run


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"stall.py", "clip_two_tower.py"}


def test_stall(example, tmp_path):
    pytest.importorskip("matplotlib")
    lines = example("stall", "--steps", "240", "--out", "picture.png", BATCH=64, REGIONS=5, FEATURES=128)
    last = next(line for line in reversed(lines) if line.lstrip().startswith("240"))
    _, hardest, selective = (part.split() for part in last.split("|"))
    assert abs(float(hardest[0]) - 0.2) < 0.004, "T-HN sits at its margin"
    assert float(selective[2]) > 3 * float(hardest[2]), "SelHN has left it behind"
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_clip_two_tower(example):
    lines = example("clip_two_tower", "--steps", "126")
    first, last = (float(line.split("rsum")[1]) for line in (lines[0], lines[-1]))
    assert last > 5 * first
