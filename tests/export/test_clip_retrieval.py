"""The folder that clip-retrieval and autofaiss read: files by number, rows that belong together."""

import json
import sys

import numpy as np
import pytest
import torch

from selhn.base.errors import MissingExtra, SelhnError
from selhn.export import Embedded, write_clip_retrieval
from selhn.search import Record

parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs the extra export")


def some(number=5, first=0, captions=1, **metadata):
    records = [
        Record(f"{n}.jpg", tuple(f"text {n} {m}" for m in range(captions)), {"n": n, **metadata})
        for n in range(first, first + number)
    ]
    generator = torch.Generator().manual_seed(first)
    return Embedded(
        records,
        torch.rand(number, 8, generator=generator),
        torch.rand(number * captions, 8, generator=generator),
    )


def test_one_file_each(tmp_path):
    part = some(captions=2)
    assert write_clip_retrieval([part], tmp_path / "out") == 5
    images, texts = (np.load(tmp_path / "out" / kind / f"{kind}_0.npy") for kind in ("img_emb", "text_emb"))
    assert images.dtype == texts.dtype == np.float16
    unit = torch.nn.functional.normalize(part.images, dim=1).numpy()
    assert np.allclose(images, unit, atol=1e-3)
    assert np.allclose(texts, torch.nn.functional.normalize(part.texts[::2], dim=1).numpy(), atol=1e-3)
    table = parquet.read_table(tmp_path / "out" / "metadata" / "metadata_0.parquet").to_pydict()
    assert table == {
        "image_path": [f"{n}.jpg" for n in range(5)],
        "caption": [f"text {n} 0" for n in range(5)],
        "n": [0, 1, 2, 3, 4],
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_row_a_caption(tmp_path):
    assert write_clip_retrieval([some(captions=2)], tmp_path / "out", "pair") == 10
    table = parquet.read_table(tmp_path / "out" / "metadata" / "metadata_0.parquet").to_pydict()
    assert table["image_path"][:4] == ["0.jpg", "0.jpg", "1.jpg", "1.jpg"]
    assert table["caption"][:4] == ["text 0 0", "text 0 1", "text 1 0", "text 1 1"]


def test_many_files_hold_all_rows_in_order(tmp_path):
    parts = [some(4, 0), some(1, 4), some(17, 5)]
    assert write_clip_retrieval(parts, tmp_path / "out", rows_per_file=2) == 22
    names = sorted(path.name for path in (tmp_path / "out" / "img_emb").iterdir())
    assert names == [f"img_emb_{number:02}.npy" for number in range(11)]
    paths, rows = [], []
    for number in range(11):
        table = parquet.read_table(
            tmp_path / "out" / "metadata" / f"metadata_{number:02}.parquet"
        ).to_pydict()
        paths += table["image_path"]
        rows.append(np.load(tmp_path / "out" / "text_emb" / f"text_emb_{number:02}.npy"))
    assert paths == [f"{n}.jpg" for n in range(22)]
    wanted = torch.nn.functional.normalize(torch.cat([part.texts for part in parts]), dim=1)
    assert np.allclose(np.concatenate(rows), wanted.numpy(), atol=1e-3)


def test_texts_are_left_out_where_some_image_has_none(tmp_path):
    write_clip_retrieval([some(3), some(3, 3, captions=0)], tmp_path / "out", rows_per_file=3)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["img_emb", "metadata"]


def test_metadata_of_any_kind(tmp_path):
    part = some(3, tags=["a", 1], big=2**70, caption="theirs")
    part.records[1].metadata.update(n="mixed", only=True)
    write_clip_retrieval([part], tmp_path / "out")
    table = parquet.read_table(tmp_path / "out" / "metadata" / "metadata_0.parquet").to_pydict()
    assert table["caption"][0] == "text 0 0"
    assert [json.loads(value) for value in table["tags"]] == [["a", 1]] * 3
    assert [json.loads(value) for value in table["n"]] == [0, "mixed", 2]
    assert [json.loads(value) for value in table["big"]] == [2**70] * 3
    assert table["only"] == [None, True, None]


def test_nothing_is_left_of_a_folder_that_fails(tmp_path):
    def parts():
        yield some()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_clip_retrieval(parts(), tmp_path / "out")
    with pytest.raises(SelhnError, match="nothing"):
        write_clip_retrieval([some(3, captions=0)], tmp_path / "out", "pair")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SelhnError, match="exists"):
        write_clip_retrieval([some()], tmp_path)


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"need pyarrow: pip install .*\[export\]"):
        write_clip_retrieval([some()], tmp_path / "out")
