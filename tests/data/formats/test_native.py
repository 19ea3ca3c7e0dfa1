import json

import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import Data, DenseFeatures, RaggedFeatures, Split, load_data, write_native


def make_split(name, features, boxes=None, folds=1):
    images = features.num_images
    owners = torch.tensor([images - 1, *range(images)])  # in any order, any number an image
    captions = [f"{name} caption {n} \u2028 \u00e9\n\ud800" for n in range(images + 1)]
    return Split(name, features, captions, owners, [f"{name}{n}.jpg" for n in range(images)], boxes, folds)


def make_data(ragged):
    splits = []
    for n, name in enumerate(("train", "dev", "test")):
        generator = torch.Generator().manual_seed(n)
        if ragged:
            features = RaggedFeatures.of(
                torch.randn(9, 4, generator=generator), torch.tensor([0, 2, 3, 7, 9])
            )
            boxes = torch.rand(4, 4, 4)
        else:
            features, boxes = DenseFeatures(torch.randn(5, 3, 4, generator=generator)), None
        splits.append(make_split(name, features, boxes, 5 if name == "test" and not ragged else 1))
    return Data("tiny", *splits)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_written_is_read(tmp_path, ragged, dtype, monkeypatch):
    monkeypatch.setattr(
        "selhn.data.features.blocks", lambda rows, size: (slice(n, n + 1) for n in range(rows))
    )
    data = make_data(ragged)
    folder = write_native(data, tmp_path / "new" / "tiny", precision=dtype)
    found = load_data(folder)
    assert (found.name, found.test.folds) == ("tiny", data.test.folds)
    for ours, theirs in zip((data.train, data.dev, data.test), (found.train, found.dev, found.test)):
        rows = torch.arange(ours.num_images)
        regions, mask = ours.features.gather(rows)
        read, read_mask = theirs.features.gather(rows)
        assert torch.equal(mask, read_mask)
        assert torch.equal(regions.to(getattr(torch, dtype)).float(), read)
        assert list(ours.captions) == list(theirs.captions)
        assert ours.image_names == theirs.image_names
        assert torch.equal(ours.image_of_text, theirs.image_of_text)
        assert (theirs.boxes is None) if ours.boxes is None else torch.equal(ours.boxes, theirs.boxes)
        assert np.load(folder / f"{ours.name}_features.npy").dtype == dtype
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tiny"]


def test_nothing_is_left_when_writing_fails(tmp_path):
    data = make_data(False)
    data.test.features.store[3, 1, 2] = 1e6
    with pytest.raises(SelhnError, match="image 3"):
        write_native(data, tmp_path / "tiny", precision="float16")
    data.test.features.store[3, 1, 2] = torch.nan
    with pytest.raises(SelhnError, match="image 3"):
        write_native(data, tmp_path / "tiny")
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_overwritten(tmp_path, as_a_user):
    (tmp_path / "tiny").mkdir()
    write_native(make_data(False), tmp_path / "tiny")
    with pytest.raises(SelhnError, match="exists"):
        write_native(make_data(False), tmp_path / "tiny")
    with pytest.raises(SelhnError, match="precision"):
        write_native(make_data(False), tmp_path / "other", precision="int8")


def edit(change):
    def harm(folder):
        content = json.loads((folder / "data.json").read_text())
        change(content)
        (folder / "data.json").write_text(json.dumps(content))

    return harm


def line(name, number, text):
    def harm(folder):
        lines = (folder / name).read_text(encoding="utf-8").split("\n")
        lines[number - 1] = text
        (folder / name).write_text("\n".join(lines), encoding="utf-8")

    return harm


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (edit(lambda c: c.update(version=2)), "version 2"),
        (edit(lambda c: c.update(splits=[])), "splits"),
        (edit(lambda c: c.update(folds=0)), "folds"),
        (edit(lambda c: c["splits"].pop("dev")), "no dev"),
        (edit(lambda c: c["splits"].update(dev=3)), "features"),
        (edit(lambda c: c["splits"]["dev"].update(texts="../secret")), "'texts', a plain file"),
        (edit(lambda c: c["splits"]["dev"].update(boxes="none.npy")), "none.npy"),
        (line("dev_texts.jsonl", 2, '{"image": 4, "text": "a"}'), "line 2.*image 4"),
        (line("dev_texts.jsonl", 3, '{"image": 1, "text": " "}'), "empty texts in line 3"),
        (line("dev_texts.jsonl", 3, "{"), "line 3.*JSON"),
        (line("dev_images.jsonl", 1, '{"name": "a"}\n{"name": "b"}'), "5 lines"),
        (lambda f: np.save(f / "dev_boxes.npy", np.zeros((4, 3, 4))), "dev_boxes.npy"),
        (lambda f: np.save(f / "dev_offsets.npy", np.array([0, 2, 8])), "9 rows"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, harm, sentence):
    folder = write_native(make_data(True), tmp_path / "tiny")
    harm(folder)
    with pytest.raises(SelhnError, match=sentence):
        load_data(folder)


def test_boxes_go_with_their_features(tmp_path):
    mask = torch.tensor([[True, False, True, False], [False, False, True, False]])

    class Holed(DenseFeatures):
        def read(self, rows):
            return super().read(rows)[0], mask[rows]

    array, boxes = torch.randn(2, 4, 3), torch.rand(2, 4, 4)
    splits = [make_split(name, Holed(array), boxes) for name in ("train", "dev", "test")]
    train = load_data(write_native(Data("holed", *splits), tmp_path / "native")).train
    assert torch.equal(train.boxes[0], boxes[0][[0, 2]])
    assert torch.equal(train.boxes[1][0], boxes[1][2])
    assert torch.equal(train.features.gather(torch.arange(2))[0][0], array[0][[0, 2]])
