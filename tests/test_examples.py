"""The examples run, and show what they say."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments, cwd):
    # One thread: the suite has a process for every core already.
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"stall.py", "clip_two_tower.py"}


def test_stall(tmp_path):
    pytest.importorskip("matplotlib")
    out = run("stall.py", "--steps", "360", "--out", "picture.png", cwd=tmp_path)
    last = next(line for line in reversed(out.splitlines()) if line.lstrip().startswith("360"))
    _, hardest, selective = (part.split() for part in last.split("|"))
    assert abs(float(hardest[0]) - 0.2) < 0.004, "T-HN sits at its margin"
    assert float(selective[2]) > 3 * float(hardest[2]), "SelHN has left it behind"
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_clip_two_tower(tmp_path):
    lines = run("clip_two_tower.py", "--steps", "126", cwd=tmp_path).splitlines()
    first, last = (float(line.split("rsum")[1]) for line in (lines[0], lines[-1]))
    assert last > 5 * first
