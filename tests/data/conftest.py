"""Small data sets on disk, each written by the test that needs it."""

import base64
import json

import numpy as np
import pytest

CAPTIONS = [
    "a dog jumps over a fence",
    "two children play",
    "a red boat",
    "the man reads",
    "snow falls on a hill",
]


def caption(n):
    return f"{CAPTIONS[n % 5]} number {n}"


def features(images, regions=3, width=4, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal((images, regions, width)).astype(dtype)


class Precomp:
    """A precomp folder with one row an image in train, and a row for each caption in dev and test."""

    sizes = {"train": 6, "dev": 3, "test": 2}

    def __init__(self, folder, each=5):
        self.folder, self.each = folder, each
        folder.mkdir()
        first_id = 0
        for seed, (split, images) in enumerate(self.sizes.items()):
            repeat = 1 if split == "train" else each
            self.write(split, features(images, seed=seed), range(first_id, first_id + images), repeat)
            first_id += images

    def write(self, split, array, ids, repeat=1, each=None):
        each = self.each if each is None else each
        np.save(self.folder / f"{split}_ims.npy", np.repeat(array, repeat, axis=0))
        self.text(f"{split}_caps.txt", [caption(n) for n in range(each * len(array))])
        self.text(f"{split}_ids.txt", [str(i) for i in ids for _ in range(repeat)])

    def text(self, name, lines):
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def array(self, name):
        return np.load(self.folder / name)

    def change(self, name, row, value):
        array = self.array(name)
        array[row] = value
        np.save(self.folder / name, array)


@pytest.fixture
def precomp(tmp_path):
    return Precomp(tmp_path / "f30k_precomp")


@pytest.fixture
def pocket(tmp_path):
    """A pocket folder of 4 regions, 3 codes and 5 features, and its projection."""
    folder = tmp_path / "tiny_pocket"
    folder.mkdir()
    rng = np.random.default_rng(0)
    projection = {
        "mean": rng.standard_normal(5).astype(np.float32),
        "components": rng.standard_normal((5, 3)).astype(np.float16),
        "scale": np.array([0.5, 0.1, 0.02], np.float32),
    }
    np.savez(folder / "projection.npz", **projection)
    first = 0
    for split, images in (("train", 4), ("dev", 2), ("test", 2)):
        np.save(folder / f"{split}_ims.npy", rng.integers(-127, 128, (images, 4, 3)).astype(np.int8))
        np.save(folder / f"{split}_boxes.npy", rng.integers(0, 256, (images, 4, 6)).astype(np.uint8))
        (folder / f"{split}_caps.txt").write_text("".join(f"{caption(n)}\n" for n in range(5 * images)))
        (folder / f"{split}_ids.txt").write_text("".join(f"{first + n}.jpg\n" for n in range(images)))
        first += images
    return folder


@pytest.fixture
def karpathy(tmp_path):
    """A Karpathy file of 7 images in mixed splits with 2, 3, 2, ... captions, and features beside it."""
    folder = tmp_path / "karpathy"
    folder.mkdir()
    splits = ["train", "val", "restval", "test", "train", "test", "val"]
    images = [
        {
            "split": split,
            "filename": f"{100 + n}.jpg",
            "imgid": n,
            "sentences": [{"raw": f"{caption(n)} take {s}"} for s in range(2 + n % 2)],
        }
        for n, split in enumerate(splits)
    ]
    (folder / "dataset_flickr30k.json").write_text(json.dumps({"images": images, "dataset": "flickr30k"}))
    np.save(folder / "features.npy", features(7, dtype="float16"))
    return folder


@pytest.fixture
def tsv_line():
    """A line of a TSV file, of an image 200 wide and 100 high."""

    def write(name, regions, boxes):
        encoded = (base64.b64encode(np.asarray(x, "<f4").tobytes()).decode() for x in (boxes, regions))
        return "\t".join([name, "200", "100", str(len(regions)), *encoded])

    return write


@pytest.fixture
def tsv(karpathy, tsv_line):
    """The same images with 1 to 3 boxes in a TSV file, in another order; returns (folder, features by file name)."""
    regions = {f"{100 + n}": features(1, 1 + n % 3, seed=n)[0] for n in range(7)}
    lines = [
        tsv_line(name, array, [[20, 10, 200, 100]] * len(array)) for name, array in reversed(regions.items())
    ]
    (karpathy / "features.npy").unlink()
    (karpathy / "boxes36.tsv").write_text("\r\n".join(lines) + "\r\n")
    return karpathy, regions
