import numpy as np
import pytest
import torch

from selhn.base.errors import NotFound, SelhnError
from selhn.data import FORMATS, DenseFeatures, Split, check, import_data, load_data, register_format
from selhn.data.formats import find_format
from selhn.pictures.indexing import pictures_in


def test_every_format_is_recognised(precomp, pocket, karpathy, tmp_path):
    assert find_format(precomp.folder)[1] == "precomp"
    assert find_format(pocket)[1] == "pocket"
    assert find_format(karpathy)[1] == "karpathy"
    assert find_format(karpathy / "dataset_flickr30k.json")[1] == "karpathy"
    assert find_format(import_data(pocket, tmp_path / "new"))[1] == "native"


def test_a_named_data_set_is_found_below_data(precomp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SELHN_DATA", raising=False)
    with pytest.raises(NotFound, match="SELHN_DATA"):
        load_data("f30k")
    (tmp_path / "sets").mkdir()
    precomp.folder.rename(tmp_path / "sets" / "f30k_precomp")
    monkeypatch.setenv("SELHN_DATA", str(tmp_path / "sets"))
    assert load_data("f30k").source == str(tmp_path / "sets" / "f30k_precomp")
    monkeypatch.delenv("SELHN_DATA")
    (tmp_path / "sets").rename(tmp_path / "data")
    assert find_format("f30k")[0].samefile("data/f30k_precomp")


def test_tsv_is_recognised_beside_its_captions(tsv):
    assert find_format(tsv[0])[1] == "tsv"
    assert find_format(tsv[0] / "boxes36.tsv")[1] == "tsv"


@pytest.mark.parametrize("source", ["precomp", "pocket", "karpathy"])
def test_importing_changes_nothing_but_the_format(request, source, tmp_path):
    folder = request.getfixturevalue(source)
    folder = folder.folder if source == "precomp" else folder
    before, after = load_data(folder), load_data(import_data(folder, tmp_path / "new"))
    assert (before.name, before.test.folds) == (after.name, after.test.folds)
    for one, other in zip((before.train, before.dev, before.test), (after.train, after.dev, after.test)):
        rows = torch.arange(one.num_images)
        assert torch.equal(one.features.gather(rows)[0], other.features.gather(rows)[0])
        assert list(one.captions) == list(other.captions)
        assert list(one.image_names) == list(other.image_names)
        assert torch.equal(one.image_of_text, other.image_of_text)


def test_importing_takes_the_options_of_the_source(pocket, tmp_path):
    folder = import_data(pocket, tmp_path / "new", precision="float16", form="pca", regions=2)
    assert np.load(folder / "train_features.npy").shape == (4, 2, 3)


def test_the_generated_world_takes_options():
    data = load_data("world", images=40, seed=1)
    assert data.train.num_images == 40


@pytest.mark.parametrize("option", ["cutdev", "report"])
def test_unknown_options(precomp, option):
    with pytest.raises(NotFound):
        load_data(precomp.folder, **{option: 1})


def test_unknown_names_and_folders(tmp_path):
    with pytest.raises(NotFound, match="or 'world'"):
        load_data("wrold")
    (tmp_path / "report.txt").write_text("nothing here")
    with pytest.raises(NotFound) as caught:
        load_data(tmp_path)
    assert all(f" {name} (" in str(caught.value) for name in FORMATS if name != "world")


def test_a_folder_of_pictures_is_recognised(tmp_path):
    assert not pictures_in(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.jpg").write_bytes(b"any")
    assert pictures_in(tmp_path)
    assert not pictures_in(tmp_path / "sub" / "a.jpg")
    with pytest.raises(NotFound, match="selhn data import"):
        load_data(tmp_path)
    (tmp_path / "data.json").write_text("{}")
    assert not pictures_in(tmp_path), "a data set may have pictures beside it"


def test_a_format_of_another_package(precomp, tmp_path, monkeypatch):
    monkeypatch.setattr("selhn.data.formats.FORMATS", dict(FORMATS))

    def read_mine(path, report, *, images: int = 2):
        report.lines.append("mine: generated")
        regions = torch.arange(images * 6.0).view(images, 2, 3)
        splits = {}
        for name in ("train", "dev", "test"):
            names = [f"{name} {number}" for number in range(images)]
            splits[name] = Split(name, DenseFeatures(regions), names, torch.arange(images), names)
        return "mine", splits

    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(NotFound):
        load_data(tmp_path)
    register_format("mine", read_mine, looks_like=lambda path: (path / "mine.txt").is_file())
    data = load_data(tmp_path, images=3)
    assert (data.name, data.test.num_images, data.test.captions[2]) == ("mine", 3, "test 2")
    assert load_data(import_data(tmp_path, tmp_path / "new")).train.num_images == 2
    assert check(tmp_path).ok
    (precomp.folder / "mine.txt").write_text("")
    assert find_format(precomp.folder)[1] == "mine", "tried first"
    with pytest.raises(SelhnError):
        register_format("mine", read_mine, looks_like=lambda path: False)
