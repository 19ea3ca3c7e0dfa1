"""What holds for every model of the table."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from model_cases import CASES, FIXED_REGIONS, WORDS, make_batch, make_model, of_images, of_rows, score_batch

from selhn.base.errors import NotFound, SelhnError
from selhn.base.types import Batch
from selhn.losses import TripletSelHN
from selhn.models import (
    MODELS,
    CrossAttention,
    create_model,
    list_models,
    load_model,
    matcher,
    register_model,
)
from selhn.models.matcher import encode_batch, taken_side
from selhn.text import Vocabulary

IDLE = (
    ".key.bias",
    ".common.bias",
    ".out.bias",
    ".summary.2.bias",
    ".of_concept.0.bias",
    ".of_item.0.bias",
    ".last.bias",
    ".confidence.bias",
)
"""What a softmax or a batch norm takes away again, and published weights have."""
every_model = pytest.mark.parametrize("name", CASES)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_every_model_has_a_case():
    assert set(CASES) == set(MODELS)


def test_list_models():
    assert list_models() == list(MODELS)
    assert list_models("sa*") == ["saf"]
    assert list_models("vsepp*") == ["vsepp", "vsepp_order"]
    for entry in MODELS.values():
        assert entry.url.startswith("https://")
        assert entry.paper
        assert entry.build.__doc__


@pytest.mark.parametrize(
    ("name", "setting"),
    [("camp", "heads"), ("cmcan", "neighbours"), ("imram", "steps"), ("saf", "num_regions"), ("rvse", "dim")],
)
def test_sizes_are_at_least_one(name, setting):
    with pytest.raises(SelhnError, match=setting):
        create_model(name, vocab_size=5, feature_dim=4, **{setting: 0})


@every_model
def test_scores_of_a_batch(name):
    model, batch = make_model(name), make_batch()
    match = model(batch)
    assert match.scores.shape == (6, 6)
    assert match.scores.isfinite().all()
    assert match.aux == {}
    assert torch.equal(match.scores, score_batch(model, batch))
    assert match.scores.std() > 1e-4, "all pairs score the same"


@every_model
def test_embeddings_say_so(name):
    model, batch = make_model(name), make_batch()
    images, texts = encode_batch(model, batch)
    if model.is_embedding:
        close(images @ texts.T, model.score(images, texts))
        for vectors in (images, texts):
            close(vectors.norm(dim=1), torch.ones(6))


@every_model
def test_without_masks_all_is_real(name):
    model, batch = make_model(name), make_batch()
    whole = replace(
        batch, region_mask=torch.ones_like(batch.region_mask), token_mask=torch.ones_like(batch.token_mask)
    )
    images = model.encode_images(batch.regions, **taken_side(model, batch.side, "images"))
    texts = model.encode_texts(batch.tokens, **taken_side(model, batch.side, "texts"))
    scores = model.score(images, texts)
    assert torch.equal(scores, score_batch(model, whole))


@every_model
def test_vectors_of_sentences_and_images(name, monkeypatch):
    monkeypatch.setattr(matcher, "ITEMS_AT_ONCE", 4)
    model, batch = make_model(name).train(), make_batch()
    texts = ["word3", "word11 word2 word7 word9", "word5 word1", "word4", "word8 word9 word3", "word30"]
    if isinstance(model, CrossAttention):
        with pytest.raises(SelhnError):
            model.embed_texts(texts)
        with pytest.raises(SelhnError):
            model.embed_images(batch.regions, batch.region_mask)
        return
    images, sentences = model.embed_images(batch.regions, batch.region_mask), model.embed_texts(texts)
    assert model.training
    assert not images.requires_grad
    model.eval()
    close(images, model.encode_images(batch.regions, batch.region_mask))
    close(sentences, model.encode_texts(*model.tokenize(texts)))
    close(model.embed_images(batch.regions.double()), model.encode_images(batch.regions))
    assert model.embed_texts([]).shape == (0, images.shape[1])
    assert model.embed_images(batch.regions[:0]).shape == (0, images.shape[1])


def test_what_cannot_be_embedded_is_named(as_a_user):
    model = make_model("rvse")
    regions = make_batch().regions
    images, number, width = regions.shape
    with pytest.raises(SelhnError, match="write"):
        model.embed_texts("word3")  # not one vector per letter
    with pytest.raises(SelhnError, match="text 2"):
        model.embed_texts(["word3 word4", "word5", ""])  # its place in the list, not in order of length
    for wrong in (regions[0], regions[:, :, 1:]):
        with pytest.raises(SelhnError, match="give"):
            model.embed_images(wrong)
    with pytest.raises(SelhnError, match="mask"):
        model.embed_images(regions, torch.ones(images, number + 1, dtype=torch.bool))


@every_model
def test_padding_changes_no_score(name):
    model, batch = make_model(name), make_batch()
    more = 0 if name in FIXED_REGIONS else 3
    padded = replace(
        batch,
        regions=torch.cat([batch.regions, torch.full((6, more, batch.regions.shape[2]), 50.0)], 1),
        region_mask=torch.cat([batch.region_mask, torch.zeros(6, more, dtype=torch.bool)], 1),
        tokens=torch.cat([batch.tokens, torch.full((6, 4), 7)], 1),
        token_mask=torch.cat([batch.token_mask, torch.zeros(6, 4, dtype=torch.bool)], 1),
        side=of_images(batch, [*range(5), *[-1] * more]),
    )
    close(score_batch(model, padded), score_batch(model, batch))


@every_model
def test_a_dropped_region_is_gone(name):
    model, batch = make_model(name), make_batch()
    region_mask = torch.ones_like(batch.region_mask)
    region_mask[:, 2] = False
    dropped = replace(batch, region_mask=region_mask)
    changed = replace(dropped, regions=batch.regions.masked_fill(~region_mask[:, :, None], 50.0))
    close(score_batch(model, changed), score_batch(model, dropped))
    if name in FIXED_REGIONS:
        return
    keep = [0, 1, 3, 4]
    side = of_images(batch, keep)
    removed = replace(batch, regions=batch.regions[:, keep], region_mask=region_mask[:, keep], side=side)
    close(score_batch(model, dropped), score_batch(model, removed))


@every_model
def test_a_pair_scores_the_same_alone_in_a_batch_and_in_blocks(name):
    model, batch = make_model(name), make_batch()
    scores = score_batch(model, batch)
    images, texts = encode_batch(model, batch)
    blocks = torch.cat([model.score(images[:4], texts), model.score(images[4:], texts)])
    close(blocks, scores)
    for i, j in ((0, 0), (2, 5), (5, 1)):
        one = Batch(batch.regions[i, None], batch.region_mask[i, None], batch.tokens[j, None],
                    batch.token_mask[j, None], batch.image_ids[i, None], of_rows(batch.side, [i], [j]))  # fmt: skip
        close(score_batch(model, one)[0, 0], scores[i, j])


@every_model
def test_order_of_images_and_texts_does_not_matter(name):
    model, batch = make_model(name), make_batch()
    image_order, text_order = torch.tensor([3, 0, 5, 1, 4, 2]), torch.tensor([1, 2, 0, 5, 3, 4])
    shuffled = replace(
        batch,
        regions=batch.regions[image_order],
        region_mask=batch.region_mask[image_order],
        tokens=batch.tokens[text_order],
        token_mask=batch.token_mask[text_order],
        side=of_rows(batch.side, image_order, text_order),
    )
    close(score_batch(model, shuffled), score_batch(model, batch)[image_order][:, text_order])


@every_model
def test_gradients_reach_every_parameter(name):
    model, batch = make_model(name).train(), make_batch()
    # Not the scores themselves: a batch norm makes the sum over a batch blind to its bias.
    match = model(batch)
    sum(match.aux.values(), start=(match.scores * torch.randn(6, 6)).sum()).backward()
    idle = {key for key, parameter in model.named_parameters() if not parameter.requires_grad}
    assert all(".bns.1." in key or key.endswith(IDLE) for key in idle)
    for key, parameter in model.named_parameters():
        if key not in idle:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
            assert parameter.grad.any(), key


@every_model
def test_saved_and_loaded_it_is_the_same(name, tmp_path):
    model, batch = make_model(name), make_batch()
    model.save(tmp_path / "model")
    state = torch.get_rng_state()
    loaded = load_model(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state), "loading draws no random numbers of the caller"
    assert not loaded.training
    assert loaded.name == name
    assert loaded.settings == model.settings
    assert torch.equal(score_batch(loaded, batch), score_batch(model, batch))
    assert {key: value.dtype for key, value in loaded.state_dict().items()} == {
        key: value.dtype for key, value in model.state_dict().items()
    }
    sentence = ["word3 and word11"]
    for ours, theirs in zip(loaded.tokenize(sentence), model.tokenize(sentence), strict=True):
        assert torch.equal(ours, theirs)


@every_model
def test_half_precision_autocast(name):
    model, batch = make_model(name).train(), make_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(batch).scores
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()
    scores.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = score_batch(model.eval(), batch)
    # BFAN scores from -2 to 2, and a rounded weight can change which fragments it looks at.
    atol = 0.1 if name.startswith("bfan") else 0.05
    torch.testing.assert_close(rounded, score_batch(model, batch), rtol=0, atol=atol)


@every_model
def test_double_precision(name):
    batch = make_batch()
    scores = score_batch(make_model(name).double(), replace(batch, regions=batch.regions.double()))
    assert scores.dtype == torch.float64
    # A region alone has nearly equal weights for all words: which of them BFAN keeps is then a matter of rounding.
    compared = batch.region_mask.sum(1) > (1 if name.startswith("bfan") else 0)
    close(scores.float()[compared], score_batch(make_model(name), batch)[compared])


@pytest.mark.filterwarnings("ignore:TripletSelHN got scores beyond")  # IMRAM adds up six cosines
@every_model
def test_a_few_steps_lower_the_loss(name):
    model, batch, loss_fn = make_model(name).train(), make_batch(8), TripletSelHN()
    # A sigmoid's slope is a quarter at most, and much of what these learn from is dropped.
    steps = 100 if name in (*FIXED_REGIONS, "camp") else 30
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    while len(losses) < steps:
        loss = loss_fn(model(batch).scores)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if losses[-1] < 0.6 * losses[0]:
            return
    pytest.fail(f"after {steps} steps the loss is still {losses[-1]}: {losses}")


@every_model
def test_evaluation_is_repeatable_and_leaves_no_trace(name):
    model, batch = make_model(name), make_batch()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert torch.equal(score_batch(model, batch), score_batch(model, batch))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


@every_model
def test_an_image_without_regions_and_a_text_without_tokens_give_no_nan(name):
    model, batch = make_model(name).train(), make_batch()
    region_mask, token_mask = batch.region_mask.clone(), batch.token_mask.clone()
    region_mask[1], token_mask[2] = False, False
    scores = model(replace(batch, region_mask=region_mask, token_mask=token_mask)).scores
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_did_you_mean():
    with pytest.raises(NotFound, match="did you mean 'rvse'"):
        create_model("rvs")
    with pytest.raises(NotFound, match="did you mean 'feature_dim'"):
        create_model("rvse", vocab_size=9, feature_dims=3)


def test_vocabulary_or_its_size():
    with pytest.raises(SelhnError, match="tokenizer="):
        create_model("rvse")
    with pytest.raises(SelhnError, match="40 tokens"):
        create_model("rvse", vocab_size=3, tokenizer=WORDS)
    assert create_model("vsepp", vocab_size=40, tokenizer=WORDS, dim=4).settings["vocab_size"] == 40


def test_a_model_of_another_package(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "mine", None)  # so that it is removed again
    del MODELS["mine"]

    def mine(vocab_size: int = 40, tokenizer: Vocabulary | None = None, dim: int = 4):
        return create_model("vse_fc", vocab_size=vocab_size, tokenizer=tokenizer, dim=dim, feature_dim=12)

    register_model("mine", mine, paper="me")
    with pytest.raises(SelhnError):
        register_model("mine", mine)
    model = create_model("mine", tokenizer=WORDS)
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.settings["dim"] == 4
    assert torch.equal(again.embed_texts(["word3"]), model.embed_texts(["word3"]))
    del MODELS["mine"]
    with pytest.raises(NotFound):
        load_model(tmp_path / "model")


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_name_or_no_builder_is_refused():
    for wrong in (lambda: register_model("x", 3), lambda: register_model(3, create_model)):
        with pytest.raises(SelhnError):
            wrong()
    assert "x" not in MODELS
    with pytest.raises(SelhnError):
        create_model(["rvse"])


def test_a_width_of_numpy_is_saved_as_a_number(tmp_path):
    model = create_model("vse_fc", tokenizer=WORDS, feature_dim=np.int64(4), dim=np.int64(8), word_dim=8)
    model.save(tmp_path / "saved")
    assert load_model(tmp_path / "saved").settings["dim"] == 8
