import json

import numpy as np
import pytest
import torch

from selhn.data import Data, DenseFeatures, RaggedFeatures, Split, load_data, write_native
from selhn.data.formats import native as native_module


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
    monkeypatch.setattr(native_module, "blocks", lambda rows, size: (slice(n, n + 1) for n in range(rows)))
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
    with pytest.raises(
        ValueError, match=r"test: image 3 \(test3.jpg\) has a feature that is NaN or above 65504"
    ):
        write_native(data, tmp_path / "tiny", precision="float16")
    data.test.features.store[3, 1, 2] = torch.nan
    with pytest.raises(ValueError, match="image 3"):
        write_native(data, tmp_path / "tiny")
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_overwritten(tmp_path, as_a_user):
    (tmp_path / "tiny").mkdir()
    write_native(make_data(False), tmp_path / "tiny")
    with pytest.raises(ValueError, match="already exists: choose another name"):
        write_native(make_data(False), tmp_path / "tiny")
    with pytest.raises(ValueError, match="precision takes one of 'float32', 'float16'"):
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
        (edit(lambda c: c.update(version=2)), "version 2 are not 'selhn-data', 1: import the data again"),
        (edit(lambda c: c.update(splits=[])), "needs 'splits', which maps train"),
        (edit(lambda c: c.update(folds=0)), "'folds', a whole number"),
        (edit(lambda c: c["splits"].pop("dev")), "has no dev split"),
        (edit(lambda c: c["splits"].update(dev=3)), "split 'dev' needs 'features'"),
        (
            edit(lambda c: c["splits"]["dev"].update(texts="../secret")),
            "split 'dev' needs 'texts', a plain file name",
        ),
        (edit(lambda c: c["splits"]["dev"].update(boxes="none.npy")), "none.npy is missing"),
        (
            line("dev_texts.jsonl", 2, '{"image": 4, "text": "a"}'),
            "dev_texts.jsonl, line 2: there is no image 4: the 4 images are numbered 0 to 3",
        ),
        (line("dev_texts.jsonl", 3, '{"image": 1, "text": " "}'), "dev_texts.jsonl: empty texts in line 3"),
        (line("dev_texts.jsonl", 3, "{"), "dev_texts.jsonl, line 3 is not JSON"),
        (
            line("dev_images.jsonl", 1, '{"name": "a"}\n{"name": "b"}'),
            "dev_images.jsonl has 5 lines for 4 images",
        ),
        (lambda f: np.save(f / "dev_boxes.npy", np.zeros((4, 3, 4))), "dev_boxes.npy has shape"),
        (lambda f: np.save(f / "dev_offsets.npy", np.array([0, 2, 8])), "end with the 9 rows"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, harm, sentence):
    folder = write_native(make_data(True), tmp_path / "tiny")
    harm(folder)
    with pytest.raises(ValueError, match=sentence):
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
