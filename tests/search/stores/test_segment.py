from dataclasses import replace

import numpy as np
import pytest
import torch

from selhn.base.errors import Damaged
from selhn.search.items import Item, Record
from selhn.search.stores import segment as segment_module
from selhn.search.stores.segment import Lines, Segment, merged, write_segment
from selhn.search.stores.segment_folder import IndexFolder
from selhn.search.stores.store import Encoded, Identity
from selhn.search.where import read_filter


def make_segment(number=5, precision="float32", captions=2):
    generator = torch.Generator().manual_seed(0)
    records = [
        Record(f"i{n}", tuple(f"t{n}.{c}" for c in range((n % 2) * captions)), {"n": n, "odd": n % 2})
        for n in range(number)
    ]
    images = torch.rand(number, 4, generator=generator)
    texts = torch.rand(sum(len(record.captions) for record in records), 4, generator=generator)
    own_texts = texts.split([len(record.captions) for record in records])
    items = [Item(record.id) for record in records]
    return Segment.of(map(Encoded, items, records, images, own_texts), precision)


def written(tmp_path, *segments, precision="float32"):
    return write_segment(tmp_path / "segments" / "s", segments, Identity("", "", 4, precision))


def opened_again(tmp_path, entry, precision="float32"):
    return Segment.open(tmp_path, entry, Identity("", "", 4, precision))


def same(one, other):
    assert one.lines.ids == other.lines.ids
    assert torch.equal(one.item_of_text, other.item_of_text)
    for kind in ("image", "text"):
        assert torch.equal(one.vectors[kind].take(slice(None)), other.vectors[kind].take(slice(None)))


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("captions", [0, 2])
def test_written_and_opened(tmp_path, precision, captions):
    made = make_segment(precision=precision, captions=captions)
    entry = written(tmp_path, made, precision=precision)
    opened, folder = opened_again(tmp_path, entry, precision), tmp_path / "segments" / "s"
    IndexFolder(tmp_path).check([opened])
    same(opened, made)
    assert (folder / "texts.npy").exists() == bool(captions)
    assert {path.name for path in folder.iterdir()} == set(entry["files"])


def test_what_is_not_alive_is_left_out_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr("selhn.search.stores.vectors.BLOCK_BYTES", 32)
    segment = make_segment(7)
    deleted = [1, 4], list(range(7)), [0, 2, 3, 5, 6]
    parts = [replace(segment, deleted=torch.tensor(rows)) for rows in deleted]
    opened = opened_again(tmp_path, written(tmp_path, *parts))
    same(opened, merged(parts))
    assert opened.lines.ids == ["i0", "i2", "i3", "i5", "i6", "i1", "i4"]
    images, texts = segment.vectors["image"], segment.vectors["text"]
    rows = torch.tensor([0, 2, 3, 5, 6, 1, 4])
    assert torch.equal(opened.vectors["image"].take(slice(None)), images.take(rows))
    own = [opened.lines[int(item)].captions for item in opened.item_of_text]
    assert own == [("t3.0", "t3.1")] * 2 + [("t5.0", "t5.1")] * 2 + [("t1.0", "t1.1")] * 2
    rows = torch.tensor([2, 3, 4, 5, 0, 1])
    assert torch.equal(opened.vectors["text"].take(slice(None)), texts.take(rows))


def test_filters_and_their_captions():
    segment = make_segment(5)
    filter = read_filter("odd = 1 and n > 1")
    mask = segment.chosen(filter)
    assert mask.tolist() == [False, False, False, True, False]
    assert segment.mask("text", filter).tolist() == [False, False, True, True]
    assert segment.chosen(read_filter("odd = 1 and n > 1")) is mask
    for number in range(100):
        segment.chosen(read_filter(f"n = {number}"))
    assert len(segment._chosen) <= 32


def test_deleted_items_do_not_count():
    whole = make_segment(4)
    assert whole.mask("image") is None
    assert whole.mask("text") is None
    part = replace(whole, deleted=torch.tensor([1]))
    assert len(part) == 3
    assert part.mask("text").tolist() == [False, False, True, True]
    assert part.mask("image", read_filter("n > 1")).tolist() == [False, False, True, True]


def test_lines():
    lines = Lines(np.frombuffer(b'{"id": "a", "captions": [], "metadata": {}}\n' * 3, np.uint8))
    assert len(lines) == 3
    assert lines[2].id == "a"


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("items.jsonl", lambda c: c[:-5], "items.jsonl has"),
        ("items.jsonl", lambda c: c.replace(b"i1", b"i2"), "items.jsonl is not what was written"),
        ("images.npy", lambda c: c[:-4], "images.npy has"),
        ("images.npy", lambda c: c.replace(b"'<f4'", b"'|O8'"), "Python objects"),
        ("images.npy", lambda c: b"PK" + c[2:], "is not a .npy array"),
        ("item_of_text.npy", lambda c: c[:-1] + b"\x07", "item_of_text.npy is not what was written"),
    ],
)
def test_damage_is_named(tmp_path, file, change, sentence, monkeypatch):
    monkeypatch.setattr(segment_module, "CHECKED_AT_ONCE", 0)
    entry = written(tmp_path, make_segment())
    path = tmp_path / "segments" / "s" / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Damaged, match=sentence):
        opened_again(tmp_path, entry)


def test_changed_vectors_of_a_small_segment_are_refused(tmp_path, monkeypatch):
    entry = written(tmp_path, make_segment())
    path = tmp_path / "segments" / "s" / "images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged, match="images.npy is not what was written"):
        opened_again(tmp_path, entry)
    monkeypatch.setattr(segment_module, "CHECKED_AT_ONCE", 0)
    large = opened_again(tmp_path, entry)
    with pytest.raises(Damaged, match="images.npy is not what was written"):
        IndexFolder(tmp_path).check([large])
