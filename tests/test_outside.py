"""The worked examples of CONTRIBUTING.md, as a package outside selhn: trained, saved, loaded and indexed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```\w+ file=(\S+)\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE | re.DOTALL
)
TINY = ["data.images=40", "batch_size=32", "epochs=1", "device=cpu", "model.dim=8"]


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """The package as pip would leave it: the files of the page, and what it says about itself."""
    folder = tmp_path_factory.mktemp("site")
    for name, content in BLOCKS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    group, *lines = re.search(
        r'\[project\.entry-points\."(.*?)"\]\n(.*)', dict(BLOCKS)["pyproject.toml"], re.DOTALL
    ).groups()
    about = folder / "my_matchers-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-matchers\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{lines[0].replace(chr(34), '')}")
    return folder


@pytest.fixture(scope="module")
def selhn(outside, tmp_path_factory):
    """A command, in a process of its own that finds the package."""
    cwd = tmp_path_factory.mktemp("work")
    path = os.pathsep.join([str(ROOT / "src"), str(outside)])

    def run(*arguments, module="selhn"):
        command = [sys.executable, "-W", "error", *(["-c"] if module is None else ["-m", module]), *arguments]
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    run("train", "rvse_selhn_world", "model=bag", "loss=squared", *TINY, "--out", "run")
    return run


def test_both_are_listed(selhn):
    assert re.search(r"^bag\b", selhn("models"), re.MULTILINE)
    assert re.search(r"^squared\b", selhn("losses"), re.MULTILINE)


def test_the_run_is_a_run(selhn):
    assert "rsum" in selhn("eval", "run")
    assert "too few to judge" in selhn("diagnose", "run")


def test_saved_loaded_and_indexed(selhn):
    said = selhn("index", "world", "--model", "run", "--index", "some.index")
    assert "by bag" in said
    assert "scene-" in selhn("search", "a red ball", "--index", "some.index")
    code = """
import my_matchers, selhn
model = selhn.load_model("run")
model.save("copy")
again = selhn.load_model("copy")
assert type(again).__module__ == "my_matchers.bag"
assert (again.embed_texts(["a red ball"]) == model.embed_texts(["a red ball"])).all()
assert selhn.create_loss("squared", margin=0.5).plateau(8) == 0.25
"""
    selhn(code, module=None)
