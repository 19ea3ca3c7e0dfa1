"""The worked examples of CONTRIBUTING.md, as a package outside selhn: trained, saved, loaded and indexed."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from programs import run

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```\w+ file=(\S+)\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE | re.DOTALL
)
TINY = "data.images=40 batch_size=32 epochs=1 device=cpu model.dim=8"


@pytest.fixture
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


COMMANDS = """
import contextlib, io, json, sys
from selhn.cli import main
said = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["selhn", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            assert not end.code, words
    said.append(out.getvalue())
print(json.dumps(said))
"""
COPIED = """
import my_matchers, selhn
model = selhn.load_model("run")
model.save("copy")
again = selhn.load_model("copy")
assert type(again).__module__ == "my_matchers.bag"
assert (again.embed_texts(["a red ball"]) == model.embed_texts(["a red ball"])).all()
assert selhn.create_loss("squared", margin=0.5).plateau(8) == 0.25
"""


def test_trained_listed_measured_saved_loaded_and_indexed(outside, tmp_path):
    """In one process that trains and one that takes up what it left; both find the package by its entry point."""

    def selhn(*commands, then=""):
        words = json.dumps([shlex.split(command) for command in commands])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(outside)])}
        done = run("-W", "error", "-c", COMMANDS + then, words, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    selhn(
        f"train rvse_selhn_world model=bag loss=squared {TINY} --out run",
        f"train rvse_selhn_world model=bag loss=five_hardest chunk=8 {TINY} --out chunked",
    )
    models, losses, measured, verdict, indexed, found = selhn(
        "models", "losses", "eval run", "diagnose run", "index world --model run --index some.index",
        "search 'a red ball' --index some.index", then=COPIED,
    )  # fmt: skip
    assert re.search(r"^bag\b", models, re.MULTILINE)
    assert re.search(r"^squared\b", losses, re.MULTILINE)
    assert "rsum" in measured
    assert "too few to judge" in verdict
    assert "What helps: train longer, or log more often: 8 rows are needed" in verdict
    assert "by bag" in indexed
    assert "scene-" in found
