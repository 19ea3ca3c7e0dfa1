from dataclasses import replace

import numpy as np
import pytest
import torch
from model_cases import CASES, FEATURE_DIM, make_model

from selhn.base.errors import SelhnError
from selhn.eval.stored import digest_of
from selhn.export.matcher_towers import towers_of, width_of
from selhn.models import MODELS, load_model
from selhn.search.encoding import (
    LONGEST_QUERY,
    encode_items,
    encode_queries_of_images,
    encode_queries_of_text,
    require_towers,
)
from selhn.search.index import Index
from selhn.search.items import Item, Record


def encode(model, *items):
    return encode_items(towers_of(model), items, [Record.of(item) for item in items], 16)


def test_items_together_are_what_each_is_alone(model, make_item):
    items = [make_item(number) for number in range(7)]
    items[3] = Item("given", vector=torch.arange(16.0), captions=("word1",))
    images, texts = encode(model, *items)
    assert texts.shape == (13, 16)
    first = 0
    for item, image in zip(items, images):
        own_image, own_texts = encode(model, item)
        torch.testing.assert_close(image, own_image[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(texts[first : first + len(own_texts)], own_texts, rtol=1e-5, atol=1e-6)
        first += len(own_texts)


def test_items_without_captions(model, make_item):
    images, texts = encode(model, make_item(0, captions=()), make_item(1, captions=()))
    assert (images.shape, texts.shape) == ((2, 16), (0, 16))


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"regions": None}, "'item1' has neither regions nor a vector"),
        ({"regions": torch.full((2, FEATURE_DIM), torch.nan)}, "NaN or infinity"),
        ({"regions": torch.rand(2, 5)}, r"regions of 'item1' have shape \(2, 5\)"),
        ({"regions": torch.rand(0, FEATURE_DIM)}, rf"give \(M, {FEATURE_DIM}\) for this model"),
        (
            {"vector": torch.full((16,), torch.inf)},
            "the vector of the image 'item1' contains NaN or infinity",
        ),
        ({"vector": torch.rand(15)}, r"has shape \(15,\), but the index needs \(16,\)"),
    ],
)
def test_items_that_are_refused(model, make_item, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        encode(model, make_item(0), make_item(1, **changes))


def test_features_of_another_width_are_refused(model):
    with pytest.raises(SelhnError, match=rf"'first' have shape \(2, 5\): give \(M, {FEATURE_DIM}\)"):
        encode(model, Item("first", regions=torch.rand(2, 5)), Item("second", regions=torch.rand(3, 5)))


def test_queries(model):
    texts = encode_queries_of_text(towers_of(model), ["word1 word2", "word3"])
    torch.testing.assert_close(
        texts[1:], encode_queries_of_text(towers_of(model), ["word3"]), rtol=1e-5, atol=1e-6
    )
    images = [torch.rand(3, FEATURE_DIM), torch.rand(1, FEATURE_DIM)]
    both = encode_queries_of_images(towers_of(model), images)
    torch.testing.assert_close(
        both[1:], encode_queries_of_images(towers_of(model), images[1:]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" \n", "the query is empty"),
        ("собака прыгает", "the model knows no word of 'собака прыгает'"),
        ("狗在跳", "in the language that it has learnt"),
        ("word1 " * 2000, "has 12,000 characters: shorten it to 10,000"),
    ],
)
def test_queries_that_are_refused(model, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        encode_queries_of_text(towers_of(model), ["word1", text])


def test_the_longest_query_is_read(model):
    assert np.isfinite(encode_queries_of_text(towers_of(model), [("word1 " * 2000)[:LONGEST_QUERY]])).all()


def test_a_word_among_others_is_enough(model):
    assert encode_queries_of_text(towers_of(model), ["ein word1 本"]).shape == (1, 16)


def test_the_digest_tells_models_apart(model):
    assert digest_of(model) == digest_of(make_model("rvse"))
    other = make_model("rvse")
    with torch.no_grad():
        next(other.parameters()).add_(1e-3)
    assert len({digest_of(model), digest_of(other), digest_of(make_model("vse_fc"))}) == 3


@pytest.mark.parametrize("name", [name for name in CASES if MODELS[name].family != "cross-attention"])
def test_a_saved_model_is_the_same_model(name, tmp_path):
    model = make_model(name)
    model.save(tmp_path / "model")
    assert digest_of(load_model(tmp_path / "model")) == digest_of(model)


def test_models_with_and_without_vectors(model):
    assert width_of(model) == 16
    with pytest.raises(SelhnError, match="no single vector per image"):
        width_of(make_model("saf"))


@pytest.mark.usefixtures("as_a_user")
def test_a_model_where_towers_are_wanted_is_told_the_new_call(model, index):
    calls = [
        lambda: require_towers(model),
        lambda: Index.build(model, []),
        lambda: Index.create(model),
        lambda: Index.load(index.path, model),
    ]
    for call in calls:
        with pytest.raises(
            SelhnError, match=r"not an object of class VSE: for a model, Index.build\(towers_of\(model\), "
        ):
            call()
    with pytest.raises(SelhnError, match=r"Index.build\(open_towers\('ready'\), ...\)"):
        Index.create("ready")


def test_arrays_of_numpy_are_taken_too(model, make_item):
    item = make_item(3)
    theirs = replace(item, regions=item.regions.numpy())
    for own, other in zip(encode(model, item), encode(model, theirs)):
        np.testing.assert_array_equal(own, other)
    record = Record.of(item)
    assert item.content(record) == theirs.content(record)
    vector = Item("a", vector=np.arange(16, dtype=np.float32))
    np.testing.assert_array_equal(encode(model, vector)[0][0], vector.vector)
    found = encode_queries_of_images(towers_of(model), [item.regions, vector.vector])
    np.testing.assert_array_equal(found[1], vector.vector)
    with pytest.raises(SelhnError, match="the query image has 15 numbers, but the index needs 16"):
        encode_queries_of_images(towers_of(model), [np.zeros(15)])
