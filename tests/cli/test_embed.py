"""`selhn embed`, and an index from what it wrote."""

import pytest
import torch
from picture_cases import TinyBackbone, encoded, photo

from selhn.cli import main
from selhn.models import create_model
from selhn.pictures import Extractor
from selhn.text import Vocabulary

pytest.importorskip("pyarrow", reason="Parquet needs the extra export")


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["selhn", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_pictures_to_shards_to_an_index(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    model = tmp_path / "model"
    words = Vocabulary.build(["a red ball"], 1)
    create_model("rvse", tokenizer=words, feature_dim=4, dim=8).save(model)
    monkeypatch.setattr(
        "selhn.export.matcher_towers.load_extractor", lambda name, device="cpu": Extractor(TinyBackbone())
    )
    pictures = tmp_path / "Pictures"
    pictures.mkdir()
    for number in range(3):
        (pictures / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    (pictures / "bad.png").write_bytes(b"not a picture")
    out = tmp_path / "out"
    assert run(monkeypatch, "embed", pictures, out, "--model", model, "--rows", 2) == 0
    said = capsys.readouterr().out
    assert f"3 pictures embedded, 1 left out; {out}: 2 shards, 8 numbers each in float16, by rvse" in said
    assert "left out: " + str(pictures / "bad.png") in said
    assert run(monkeypatch, "embed", pictures, out, "--model", model, "--rows", 3) == 2
    assert "was begun with another rows (2, not 3)" in capsys.readouterr().err
    assert run(monkeypatch, "index", out, "--index", tmp_path / "index") == 2
    assert "give it with --model" in capsys.readouterr().err
    assert run(monkeypatch, "index", out, "--index", tmp_path / "index", "--model", model) == 0
    assert "3 images" in capsys.readouterr().out
