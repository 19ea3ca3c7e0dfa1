import os
from pathlib import Path

import pytest
import torch
from tiny import small_model

from selhn.base.errors import SelhnError
from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Library
from selhn.pictures.picture_files import open_picture
from selhn.search import Index
from selhn.serve.attention import looking_by
from selhn.serve.looking import FULL_FIT, KEPT, LookingAtParts


def looking_at(collection, model=None):
    return LookingAtParts(collection.towers) if model is None else looking_by(model, collection.library)


def test_every_region_alone_against_every_word_alone(collection):
    path = collection.library.picture(collection.index.ids()[0])
    found = looking_at(collection).look(path, "A red, dog!")
    assert found.kind == "fit"
    assert found.words == ["a", "red", "dog"]
    assert len(found.boxes) == 9, "the whole picture says nothing about where"
    assert all(len(row) == 9 for row in found.weights)
    assert found.full >= FULL_FIT
    model, extractor = collection.towers.matcher, collection.towers.extractor
    with torch.inference_mode():
        regions = extractor([open_picture(path).image])[0]
        one = model.encode_images(regions[3][None, None], torch.ones(1, 1, dtype=torch.bool))
        score = model.score(one, model.encode_texts(*model.tokenize(["dog"]))).item()
    assert found.weights[2][2] == pytest.approx(max(0.0, score), abs=1e-5)


def test_words_that_the_model_does_not_know_fit_nothing(collection):
    path = collection.library.picture(collection.index.ids()[0])
    found = looking_at(collection).look(path, "qwertz dog")
    assert found.weights[0] == [0.0] * 9
    assert looking_at(collection).look(path, "...").words == []


@pytest.mark.parametrize("name", ["scan_t2i_avg", "bfan_equal", "scan_i2t_avg"])
def test_the_attention_of_a_model_that_has_one(collection, name):
    path = collection.library.picture(collection.index.ids()[0])
    found = looking_at(collection, small_model(name, word_dim=8)).look(path, "a red dog")
    assert found.kind == "attention"
    assert found.words == ["a", "red", "dog"]
    assert len(found.boxes) == 10
    assert all(len(row) == 10 for row in found.weights)
    if name == "scan_t2i_avg":
        assert [sum(row) for row in found.weights] == pytest.approx([1, 1, 1], abs=1e-4)


def test_a_picture_is_extracted_once_and_few_are_kept(collection):
    looking = looking_at(collection)
    backbone = collection.towers.extractor.backbone
    path = collection.library.picture(collection.index.ids()[0])
    backbone.calls.clear()
    looking.look(path, "dog")
    looking.look(path, "ball")
    assert backbone.calls == [1]
    for name in collection.index.ids() * 4:
        touched = Path(name)
        os.utime(touched, (0, touched.stat().st_mtime + 1))
        looking.look(touched, "dog")
    assert looking._parts.cache_info().currsize == KEPT


def test_who_can(collection):
    library = collection.library
    assert isinstance(looking_by(small_model(), library), LookingAtParts)
    assert looking_by(small_model("scan_t2i_avg", word_dim=8), library)
    silent = create_model("rvse", vocab_size=9, feature_dim=4, dim=8)
    other = create_model("rvse", tokenizer=small_model().tokenizer, feature_dim=7, dim=8)
    for model, of in (
        (small_model(), Library(Index.create(towers_of(small_model())))),
        (silent, library),
        (other, library),
    ):
        with pytest.raises(SelhnError, match="--attention needs an index of pictures with a known extractor"):
            looking_by(model, of)
