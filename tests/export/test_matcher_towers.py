"""A torch model in the place of towers gives the vectors of the model."""

import numpy as np
import pytest
import torch
from model_cases import FEATURE_DIM, make_model
from picture_cases import TinyBackbone, photo

import selhn
from selhn.base.errors import SelhnError
from selhn.eval.stored import digest_of
from selhn.export import towers_of
from selhn.pictures import Extractor


@pytest.fixture(scope="module")
def model():
    return make_model("rvse")


def test_it_says_what_the_model_is(model):
    towers = towers_of(model)
    told = (towers.name, towers.width, towers.source, towers.is_product, towers.feature_dim, towers.features)
    assert told == ("rvse", 16, None, True, FEATURE_DIM, "")
    assert towers.digest == digest_of(model)
    assert not towers_of(make_model("vsepp_order")).is_product


def test_the_digest_follows_the_weights():
    model = make_model("rvse")
    towers, before = towers_of(model), digest_of(model)
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    assert before != towers.digest == digest_of(model)


def test_vectors_are_those_of_the_model(model):
    towers, texts = towers_of(model.train()), ["word1 word2", "word3"]
    found = towers.embed_texts(texts)
    assert model.training
    assert (found.dtype, found.shape) == (np.float32, (2, 16))
    np.testing.assert_array_equal(found, model.embed_texts(texts).numpy())
    assert towers.embed_texts([]).shape == (0, 16)
    regions, mask = torch.rand(3, 4, FEATURE_DIM), torch.arange(4) < torch.tensor([[4], [2], [1]])
    found = towers.embed_regions(regions.numpy(), mask.numpy())
    np.testing.assert_array_equal(found, model.embed_images(regions, mask).numpy())
    assert towers.embed_regions(
        np.broadcast_to(np.float32(1), (1, 2, FEATURE_DIM)), np.ones((1, 2), bool)
    ).shape


@pytest.mark.parametrize("name", ["rvse", "vsepp_order"])
def test_scores_are_those_of_the_model(name):
    model = make_model(name)
    images, texts = torch.rand(3, 16), torch.rand(4, 16)
    found = towers_of(model).score(images.numpy(), texts.numpy())
    np.testing.assert_allclose(found, model.score(images, texts).detach().numpy(), atol=1e-6)


def test_the_tokenizer(model):
    tokenizer = towers_of(model).tokenizer
    ids, mask = tokenizer.encode(["word1 word2", "word3"])
    own_ids, own_mask = model.tokenize(["word1 word2", "word3"])
    np.testing.assert_array_equal(ids, own_ids.numpy())
    np.testing.assert_array_equal(mask, own_mask.numpy())
    assert tokenizer.spell(ids[0].tolist())[1:3] == ["word1", "word2"]
    assert np.isin(ids[0][1:3], tokenizer.ordinary).all()
    assert not tokenizer.inner.any()


@pytest.mark.usefixtures("as_a_user")
def test_what_is_refused(model):
    with pytest.raises(SelhnError, match="no single vector per image"):
        towers_of(make_model("saf"))
    with pytest.raises(SelhnError, match="matcher must be of class AbstractMatcher"):
        towers_of("runs/rvse")
    with pytest.raises(SelhnError, match="rvse takes the regions of pictures"):
        towers_of(model).embed_pictures([photo()])


@pytest.fixture(scope="module")
def of_pictures():
    return make_model("rvse", feature_dim=4)


def test_pictures_by_an_extractor(of_pictures):
    extractor, picture = Extractor(TinyBackbone()), photo()
    towers = towers_of(of_pictures, extractor)
    assert (towers.features, towers.resized) == (extractor.identity, None)
    found = towers.embed_pictures([picture, photo(2)])
    np.testing.assert_array_equal(found, of_pictures.embed_images(extractor([picture, photo(2)])).numpy())
    alone = towers_of(of_pictures).with_extractor(extractor).embed_pictures([picture])
    np.testing.assert_allclose(alone, found[:1], atol=1e-6)


def test_parts_are_regions_each_as_a_picture(of_pictures):
    extractor = Extractor(TinyBackbone())
    towers = towers_of(of_pictures, extractor)
    vectors, boxes = towers.embed_parts(towers.prepare(photo()))
    regions = extractor([photo()])[0]
    np.testing.assert_allclose(vectors, of_pictures.embed_images(regions[1:, None]).numpy(), atol=1e-6)
    assert boxes.shape == (9, 4)
    alone = towers_of(of_pictures, Extractor(TinyBackbone(), cells=0))
    assert alone.embed_parts(alone.prepare(photo())) is None


def test_an_extractor_of_another_width_is_refused():
    with pytest.raises(SelhnError, match="takes features of 5 numbers and tiny gives 4"):
        towers_of(make_model("rvse", feature_dim=5), Extractor(TinyBackbone()))


def test_saved_and_opened(of_pictures, tmp_path):
    towers_of(of_pictures).save(tmp_path / "model")
    opened = selhn.open_towers(tmp_path / "model")
    assert opened.digest == selhn.towers_of(of_pictures).digest
