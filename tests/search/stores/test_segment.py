import numpy as np
import pytest
import torch

from selhn.base.errors import Damaged
from selhn.search.items import Record
from selhn.search.stores.segment import Draft, Lines, Part, Segment, check_files
from selhn.search.where import read_filter


def draft(number=5, precision="float32", captions=2):
    records = [
        Record(f"i{n}", tuple(f"t{n}.{c}" for c in range((n % 2) * captions)), {"n": n, "odd": n % 2})
        for n in range(number)
    ]
    texts = sum(len(record.captions) for record in records)
    generator = torch.Generator().manual_seed(0)
    return Draft.of(
        records, torch.rand(number, 4, generator=generator), torch.rand(texts, 4, generator=generator), precision
    )


def same(one, other):
    assert one.lines.ids == other.lines.ids
    assert torch.equal(one.item_of_text, other.item_of_text)
    for kind in ("image", "text"):
        assert torch.equal(one.vectors(kind).take(slice(None)), other.vectors(kind).take(slice(None)))


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("captions", [0, 2])
def test_written_and_opened(tmp_path, precision, captions):
    made = draft(precision=precision, captions=captions)
    entry = made.write(tmp_path / "s")
    check_files(tmp_path / "s", entry)
    same(Segment.open(tmp_path / "s", entry, precision, 4), made.in_memory())
    assert (tmp_path / "s" / "texts.npy").exists() == bool(captions)
    assert {path.name for path in (tmp_path / "s").iterdir()} == set(entry["files"])


def test_what_is_not_alive_is_left_out_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr("selhn.search.stores.vectors.BLOCK_BYTES", 32)
    segment = draft(7).in_memory()
    alive = torch.tensor([True, False, True, True, False, True, True])
    kept = Draft([Part(segment, alive), Part(segment, torch.zeros(7, dtype=torch.bool)), Part(segment, ~alive)])
    entry = kept.write(tmp_path / "s")
    opened = Segment.open(tmp_path / "s", entry, "float32", 4)
    same(opened, kept.in_memory())
    assert opened.lines.ids == ["i0", "i2", "i3", "i5", "i6", "i1", "i4"]
    assert torch.equal(opened.images.take(slice(None)), segment.images.take(torch.tensor([0, 2, 3, 5, 6, 1, 4])))
    own = [opened.lines[int(item)].captions for item in opened.item_of_text]
    assert own == [("t3.0", "t3.1")] * 2 + [("t5.0", "t5.1")] * 2 + [("t1.0", "t1.1")] * 2
    rows = torch.tensor([2, 3, 4, 5, 0, 1])
    assert torch.equal(opened.texts.take(slice(None)), segment.texts.take(rows))


def test_filters_and_their_captions():
    segment = draft(5).in_memory()
    filter = read_filter("odd = 1 and n > 1")
    mask = segment.chosen(filter)
    assert mask.tolist() == [False, False, False, True, False]
    assert Part.whole(segment).mask("text", filter).tolist() == [False, False, True, True]
    assert segment.chosen(read_filter("odd = 1 and n > 1")) is mask
    for number in range(100):
        segment.chosen(read_filter(f"n = {number}"))
    assert len(segment._chosen) <= 32


def test_part():
    part = Part(draft(4).in_memory(), torch.tensor([True, False, True, True]))
    assert len(part) == 3
    assert part.mask("text").tolist() == [False, False, True, True]
    assert part.mask("image", read_filter("n > 1")).tolist() == [False, False, True, True]
    whole = Part.whole(part.segment)
    assert whole.mask("image") is None
    assert whole.mask("text") is None


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
def test_damage_is_named(tmp_path, file, change, sentence):
    entry = draft().write(tmp_path / "s")
    path = tmp_path / "s" / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Damaged, match=sentence):
        Segment.open(tmp_path / "s", entry, "float32", 4)


def test_a_changed_vector_is_found_by_reading_all(tmp_path):
    entry = draft().write(tmp_path / "s")
    content = bytearray((tmp_path / "s" / "images.npy").read_bytes())
    content[-2] ^= 255
    (tmp_path / "s" / "images.npy").write_bytes(content)
    Segment.open(tmp_path / "s", entry, "float32", 4)
    with pytest.raises(Damaged, match="images.npy is not what was written"):
        check_files(tmp_path / "s", entry)
