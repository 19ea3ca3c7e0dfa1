import json
import os

import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import load_data
from selhn.data.formats import precomp as precomp_module

RNG = np.random.default_rng(0)


def test_mixed_rows_give_each_image_once(precomp):
    data = load_data(precomp.folder)
    assert (data.name, data.test.folds, data.feature_dim) == ("f30k_precomp", 1, 4)
    assert [split.num_images for split in (data.train, data.dev, data.test)] == [6, 3, 2]
    assert data.dev.image_of_text.tolist() == [n // 5 for n in range(15)]
    assert data.dev.image_names == ["6", "7", "8"]
    rows = torch.tensor([2, 0])
    np.testing.assert_array_equal(data.dev.features.gather(rows)[0], precomp.array("dev_ims.npy")[[10, 0]])
    np.testing.assert_array_equal(data.train.features.gather(rows)[0], precomp.array("train_ims.npy")[[2, 0]])
    assert data.train.captions[3] == "the man reads number 3"


@pytest.mark.parametrize("repeat", [1, 3])
def test_any_constant_number_of_captions(precomp, repeat):
    precomp.write("dev", RNG.random((4, 3, 4)), range(20, 24), repeat=repeat, each=3)
    dev = load_data(precomp.folder).dev
    assert dev.num_images == 4
    assert dev.image_of_text.tolist() == [n // 3 for n in range(12)]


def test_one_caption_an_image(precomp):
    precomp.write("dev", RNG.random((7, 3, 4)), range(20, 27), each=1)
    assert load_data(precomp.folder).dev.image_of_text.tolist() == list(range(7))


def test_neighbouring_copies_are_two_images(precomp):
    array = RNG.random((4, 3, 4))
    array[1] = array[0]
    precomp.write("dev", array, range(20, 24), repeat=5)
    (precomp.folder / "dev_ids.txt").unlink()
    dev = load_data(precomp.folder).dev
    assert dev.num_images == 4
    assert dev.image_names == ["dev row 0", "dev row 5", "dev row 10", "dev row 15"]


def test_ids_tell_repeated_rows_of_different_number(precomp):
    array = RNG.random((3, 3, 4))
    np.save(precomp.folder / "dev_ims.npy", array[[0, 0, 1, 2, 2, 2]])
    precomp.text("dev_caps.txt", "abcdef")
    precomp.text("dev_ids.txt", [30, 30, 31, 32, 32, 32])
    dev = load_data(precomp.folder).dev
    assert dev.image_of_text.tolist() == [0, 0, 1, 2, 2, 2]
    assert dev.image_names == ["30", "31", "32"]
    np.testing.assert_array_equal(dev.features.gather(torch.arange(3))[0], array.astype(np.float32))


def test_a_file_may_say_which_caption_belongs_where(precomp):
    precomp.write("dev", RNG.random((3, 3, 4)), range(20, 23))
    precomp.text("dev_caps.txt", "abcd")
    precomp.text("dev_image_of_text.txt", [2, 0, 2, 1])
    assert load_data(precomp.folder).dev.image_of_text.tolist() == [2, 0, 2, 1]


def test_ids_by_caption_beside_rows_by_image(precomp):
    precomp.text("train_ids.txt", [100 + n // 5 for n in range(30)])
    assert load_data(precomp.folder).train.image_names == [str(n) for n in range(100, 106)]


def test_dev_is_cut_and_can_be_kept(precomp, monkeypatch):
    monkeypatch.setattr(precomp_module, "DEV_IMAGES", 2)
    dev = load_data(precomp.folder).dev
    assert (dev.num_images, dev.num_texts, len(dev.image_names)) == (2, 10, 2)
    assert load_data(precomp.folder).train.num_images == 6
    assert load_data(precomp.folder, cut_dev=False).dev.num_images == 3
    np.save(precomp.folder / "dev_boxes.npy", np.full((3, 3, 4), 0.5))
    precomp.write("dev", precomp.array("dev_ims.npy")[::5], range(20, 23))
    precomp.text("dev_image_of_text.txt", [n % 3 for n in range(15)])
    dev = load_data(precomp.folder).dev
    assert dev.image_of_text.tolist() == [0, 1] * 5
    assert dev.captions[2] == "the man reads number 3"
    assert dev.boxes.shape == (2, 3, 4)


def test_testall_is_the_test_split_in_five_folds(precomp):
    precomp.write("testall", RNG.random((10, 3, 4)), range(50, 60), repeat=5)
    data = load_data(precomp.folder)
    assert (data.test.num_images, data.test.folds) == (10, 5)
    data = load_data(precomp.folder, test="test")
    assert (data.test.num_images, data.test.folds) == (2, 1)


def test_the_folder_of_vse_infinity_with_file_names(precomp):
    outer = precomp.folder.parent / "f30k"
    outer.mkdir()
    precomp.folder.rename(outer / "precomp")
    (outer / "id_mapping.json").write_text(json.dumps({"6": "dog.jpg"}))
    data = load_data(outer)
    assert data.name == "f30k"
    assert data.dev.image_names == ["dog.jpg", "7", "8"]


def test_boxes(precomp):
    boxes = np.random.default_rng(0).random((6, 3, 4)).astype(np.float32) * 100
    np.save(precomp.folder / "train_boxes.npy", boxes)
    assert load_data(precomp.folder).train.boxes is None
    np.save(precomp.folder / "train_img_sizes.npy", np.tile([200, 100], (6, 1)))
    found = load_data(precomp.folder).train.boxes
    np.testing.assert_allclose(found, boxes / [200, 100, 200, 100], rtol=1e-6)
    np.save(precomp.folder / "train_boxes.npy", boxes / 100)
    np.testing.assert_allclose(load_data(precomp.folder).train.boxes, boxes / 100, rtol=1e-6)


def test_single_vectors(precomp):
    for split in precomp.sizes:
        np.save(precomp.folder / f"{split}_ims.npy", precomp.array(f"{split}_ims.npy")[:, 0])
    features = load_data(precomp.folder).dev.features
    assert (features.num_images, features.num_regions, features.width) == (3, 1, 4)


def cut_rows(precomp):
    np.save(precomp.folder / "train_ims.npy", precomp.array("train_ims.npy")[:4])


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (cut_rows, "4 rows"),
        (lambda p: p.change("dev_ims.npy", 7, 0.0), "row 7"),
        (lambda p: p.text("train_ids.txt", range(4)), "train_ids.txt"),
        (lambda p: p.text("train_image_of_text.txt", range(30)), "train_image_of_text.txt"),
        (lambda p: (p.folder / "test_caps.txt").unlink(), "test_caps.txt"),
        (lambda p: p.text("dev_caps.txt", ["a", "b", "c"] + ["", "d", " "]), "line 4, 6"),
        (lambda p: p.text("dev_caps.txt", []), "dev_caps.txt"),
        (lambda p: np.save(p.folder / "dev_boxes.npy", np.zeros((2, 3, 4))), "dev_boxes.npy"),
        (lambda p: np.save(p.folder / "test_ims.npy", np.ones((10, 3, 9))), "9 wide"),
    ],
)
def test_what_is_wrong_is_said(precomp, harm, sentence):
    harm(precomp)
    with pytest.raises(SelhnError, match=sentence):
        load_data(precomp.folder)


@pytest.mark.parametrize("ids", [None, range(20, 26)])
def test_repeated_rows_that_nothing_counts_are_refused(precomp, ids):
    array = RNG.random((3, 3, 4))
    np.save(precomp.folder / "dev_ims.npy", array[[0, 0, 1, 2, 2, 2]])
    precomp.text("dev_caps.txt", "abcdef")
    precomp.text("dev_ids.txt", ids or [])
    if ids is None:
        (precomp.folder / "dev_ids.txt").unlink()
    with pytest.raises(SelhnError, match="row 1"):
        load_data(precomp.folder)


def test_features_on_another_disk_behind_links(precomp, tmp_path):
    """Unlike a run, a data set may contain links of the user; what is not a file is refused at once."""
    (tmp_path / "disk").mkdir()
    features = precomp.folder / "train_ims.npy"
    features.rename(tmp_path / "disk" / "train_ims.npy")
    features.symlink_to(tmp_path / "disk" / "train_ims.npy")
    (tmp_path / "named").symlink_to(precomp.folder)
    assert load_data(tmp_path / "named").train.num_images == 6
    for plant in (lambda path: os.mkfifo(path), lambda path: path.symlink_to(path)):
        features.unlink()
        plant(features)
        with pytest.raises(SelhnError, match="train_ims"):
            load_data(precomp.folder)
