import json

import pytest
from PIL import Image

from selhn.demo import run_demo


def test_the_demo_trains_compares_draws_and_searches(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for _ in range(2):  # a second demo replaces the first
        run_demo(tmp_path / "demo", images=100, epochs=1)
    out = capsys.readouterr().out
    assert "On scenes that neither has seen" in out
    assert "What to type next" in out
    for name in ("T-HN", "SelHN"):
        assert json.loads((tmp_path / "demo" / name / "results.json").read_text())["test"]["rsum"] > 0
    for picture in ("training.png", "search_1.png", "search_2.png", "search_3.png"):
        with Image.open(tmp_path / "demo" / picture) as image:
            assert image.width > 1000
            assert len(image.convert("RGB").getcolors(1 << 20)) > 50
