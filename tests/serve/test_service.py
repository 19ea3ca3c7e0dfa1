from pathlib import Path

import pytest
import torch
from tiny import make_collection, small_model

from selhn.base.errors import SelhnError
from selhn.data import load_data
from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Library
from selhn.pictures.named_folders import name_folders
from selhn.pictures.picture_folders import indexed_folders
from selhn.search import Index
from selhn.serve.collection import Collection
from selhn.serve.service import Service
from selhn.text import Vocabulary


def test_nothing_to_serve():
    with pytest.raises(SelhnError, match="there is nothing to serve"):
        Service()


def test_another_model_for_attention(collection):
    service = Service(collection, attention=small_model("scan_t2i_avg", word_dim=8))
    search, attention = service.models()
    assert (search.role, attention.role) == ("search", "attention")
    assert attention.name == "scan_t2i_avg"
    assert search.digest != attention.digest


def test_attention_that_does_not_fit(collection):
    other = create_model("scan_t2i_avg", tokenizer=small_model().tokenizer, feature_dim=9, dim=8, word_dim=8)
    for served in (collection, Collection(Library(Index.create(towers_of(small_model()))))):
        with pytest.raises(SelhnError, match="--attention needs an index of pictures"):
            Service(served, attention=other)


def test_gauges(collection):
    assert Service(collection).gauges()["index_items"][1] == 12
    assert (
        "thumbnail_bytes" not in Service(Collection(Library(Index.create(towers_of(small_model()))))).gauges()
    )


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A collection on disk whose extractor is known by its name."""
    collection = make_collection(tmp_path)
    name_folders(collection.index, collection.folders)
    monkeypatch.setattr(
        "selhn.export.matcher_towers.load_extractor", lambda name, device="cpu": collection.towers.extractor
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.chdir(tmp_path)
    return collection


def test_an_index_of_pictures_is_opened_with_them(made, tmp_path):
    opened = Service.open(made.index.path).collection.library
    assert opened.name == "Pictures"
    assert opened.towers.extractor is made.towers.extractor
    assert opened.folders == (tmp_path / "Pictures",)
    assert opened.picture(opened.index.ids()[1]) == tmp_path / "Pictures" / "trip" / "01.png"


def test_the_folders_of_an_index(made, tmp_path):
    from selhn.search import Item

    regions = torch.rand(3, 4)
    facts = {"folder": "deep/er", "file": "x.png"}
    made.index.add(
        [
            Item(str(tmp_path / "Other" / "deep" / "er" / "x.png"), regions, metadata=facts),
            Item("relative/y.png", regions, metadata={"folder": "relative", "file": "y.png"}),
            Item("/etc/passwd", regions, metadata={"folder": "elsewhere", "file": "passwd"}),
            Item("/etc/shadow", regions),
        ]
    )
    assert indexed_folders(made.index) == [tmp_path / "Pictures", tmp_path / "Other"]


def test_an_index_of_other_features_is_refused(made, monkeypatch):
    from picture_cases import TinyBackbone

    from selhn.pictures import Extractor

    other = Extractor(TinyBackbone(), cells=2)
    monkeypatch.setattr("selhn.export.matcher_towers.load_extractor", lambda name, device="cpu": other)
    with pytest.raises(SelhnError, match="make it again with `selhn index`"):
        Service.open(made.index.path)


def test_an_index_of_a_data_set_has_no_pictures(made, tmp_path):
    data = load_data("world", images=100)
    model = create_model(
        "rvse", tokenizer=Vocabulary.build(data.dev.captions), feature_dim=data.feature_dim, dim=8
    )
    Index.build(towers_of(model), data.test, tmp_path / "scenes.index")
    service = Service.open(tmp_path / "scenes.index")
    assert service.name == "scenes"
    assert service.collection.folders == ()
    assert service.looking is None


def test_what_is_served(made, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    assert Service.open(runs=tmp_path / "runs").collection is None
    assert Service.open(made.index.path, runs=tmp_path / "runs").runs is not None
    small_model("scan_t2i_avg", word_dim=8).save(tmp_path / "scan")
    assert Service.open(made.index.path, attention=tmp_path / "scan").attention.name == "scan_t2i_avg"
    monkeypatch.setattr("selhn.serve.service.open_examples", lambda: made.library)
    assert Service.open(examples=True).collection.index is made.index


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "there is no index selhn.index: make one with `selhn index ~/Pictures`"),
        ({"path": Path("here"), "examples": True}, "either here or --examples"),
        ({"examples": True, "writable": True}, "--writable is for an index of your own"),
        ({"runs": Path("none")}, "there is no folder none"),
    ],
)
def test_what_cannot_be_served(made, arguments, sentence):
    with pytest.raises(SelhnError, match=sentence):
        Service.open(**arguments)


def test_a_model_is_for_an_index_that_is_named(tmp_path):
    for examples, runs in ((True, None), (False, tmp_path)):
        with pytest.raises(SelhnError, match="leave --model out"):
            Service.open(examples=examples, runs=runs, model=tmp_path)
