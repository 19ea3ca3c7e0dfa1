"""From pictures to a model that sees pixels, by the commands alone: imported, trained, measured, indexed, exported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selhn.cli import app
from selhn.pictures.examples import ANNOTATIONS, PICTURES

TINY = ["model=clip", "model.dim=32", "model.vision={hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2}",
        "model.bert={hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2}", "batch_size=32"]  # fmt: skip


def run(*words):
    """In a program of its own: with the checks of shapes around its parts, torch takes the sizes for fixed."""
    done = subprocess.run([sys.executable, "-m", "selhn", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_world_is_drawn_beside_its_captions(tmp_path):
    words = [
        "data",
        "show",
        "world",
        "images=60",
        "--split",
        "train",
        "--number",
        "3",
        "--pictures",
        str(tmp_path),
    ]
    said = CliRunner().invoke(app, words, catch_exceptions=False).output
    lines = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    assert all((tmp_path / line["image"]).is_file() and line["captions"][0] in said for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["examples", "world"])
def test_from_pictures_to_a_search(kind, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder, captions = PICTURES, ANNOTATIONS
    if kind == "world":
        folder, captions = Path("scenes"), Path("scenes/captions.jsonl")
        run("data", "show", "world", "images=200", "--split", "train", "--number", 60, "--pictures", folder)
    said = run("data", "import", folder, "patches", "--captions", captions, "--extractor", "pixels_32_8")
    assert "17 regions of 192 numbers" in said
    said = run("train", "clip_selhn_f8k", "data=patches", "epochs=2", *TINY, "--out", "run")
    assert "best epoch" in said
    assert "rsum" in run("eval", "run")
    run("index", folder, "--model", "run", "--extractor", "pixels_32_8", "--index", "found.index")
    assert len(run("search", "a red ball", "--index", "found.index").splitlines()) >= 5
    said = run("export", "onnx", "run", "towers")
    assert "from the model's" in said
    assert (tmp_path / "towers" / "image_tower.onnx").is_file()
    assert "delta_s" in run("diagnose", "run")
