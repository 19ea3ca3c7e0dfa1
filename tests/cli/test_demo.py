import importlib
import json
import re
from itertools import islice

import pytest
from PIL import Image

from selhn.base.errors import SelhnError
from selhn.cli.demo import run_demo, run_picture_demo
from selhn.reproduce.run_processes import RunOutcome
from selhn.search import Index


def test_the_demo_trains_compares_draws_and_searches(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    run_demo(tmp_path / "demo", images=100, epochs=1)
    out = capsys.readouterr().out
    assert "On unseen scenes" in out
    assert "What to type next" in out
    for name in ("T-HN", "SelHN"):
        assert json.loads((tmp_path / "demo" / name / "results.json").read_text())["test"]["rsum"] > 0
    for picture in ("training.png", "search_1.png", "search_2.png", "search_3.png"):
        with Image.open(tmp_path / "demo" / picture) as image:
            assert image.width > 1000
            assert len(image.convert("RGB").getcolors(1 << 20)) > 50


@pytest.mark.parametrize(
    ("started", "named"),
    [("src/selhn/__main__.py", "python -m selhn"), (".venv/bin/selhn", ".venv/bin/selhn")],
)
def test_what_to_type_next_can_be_typed(started, named, monkeypatch):
    demo = importlib.import_module("selhn.cli.demo")
    monkeypatch.setattr(demo.shutil, "which", lambda name: None)
    monkeypatch.setattr(demo.sys, "argv", [started])
    assert demo._command() == named


def test_a_second_demo_replaces_the_first(tmp_path, monkeypatch):
    demo = importlib.import_module("selhn.cli.demo")
    (tmp_path / "T-HN").mkdir()
    (tmp_path / "T-HN" / "config.yaml").write_text("")
    (tmp_path / "mine.txt").write_text("")
    failed = RunOutcome("no space", failed=True)
    monkeypatch.setattr(demo, "outcomes", lambda tasks, **how: [(name, failed) for name in tasks])
    with pytest.raises(SelhnError, match="no space"):
        demo._train_side_by_side(100, 1, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_demo_of_pictures_indexes_searches_and_draws(picture_demo, capsys, monkeypatch):
    folder, out = picture_demo
    assert "76 images, 380 texts, 1024 numbers each in float32, by rvsepp" in out
    assert re.search(
        r"“people skiing in the snow”\n +1 .* skiing down the side of a snow covered mountain", out
    )
    assert re.search(
        r"“two people on the beach” and a picture like the framed one\n +1 .* horses on the beach", out
    )
    assert "“two bears”   (no sure match)\n" in out
    first, among_five = map(
        int,
        re.search(
            r"is the first answer\nin (\d+)% of the searches, and among the first five in (\d+)%", out
        ).groups(),
    )
    assert first >= 35
    assert among_five >= 75
    with Image.open(folder / "pictures.png") as sheet:
        assert sheet.width > 1000
        assert len(sheet.convert("RGB").getcolors(1 << 22)) > 5000
    elsewhere = {path.name for path in (folder.parent / "cache").glob("selhn/*")} - {"lock"}
    assert all(name.startswith(("minilm-", "ready-", "towers")) for name in elsewhere), (
        "only the ready model, and that it was tried"
    )
    # A second demo makes no second index. It asks with a few of the 380 captions: all of them took most of the time.
    manifest, records = folder / "pictures.index" / "manifest.json", Index.records
    written = manifest.read_bytes()
    monkeypatch.setattr(
        Index, "records", lambda self, *where: islice(records(self, *where), None if where else 2)
    )
    run_picture_demo(folder)
    same = out.index("is the first answer")
    assert capsys.readouterr().out[:same] == out[:same]
    assert manifest.read_bytes() == written
