import math

import pytest
import torch
from model_cases import CASES, make_batch, make_model, score_batch, without_dropout
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from selhn.models import MODELS, create_model, encode_batch
from selhn.ops import Fragments

NAMES = [name for name, entry in MODELS.items() if entry.family == "cross-attention"]


@pytest.mark.parametrize("name", NAMES)
def test_encodings_are_zero_at_padding_and_unit_vectors_elsewhere(name):
    model, batch = make_model(name), make_batch()
    images, texts = encode_batch(model, batch)
    for encoded, mask in ((images, batch.region_mask), (texts, batch.token_mask)):
        assert torch.equal(encoded.mask, mask)
        lengths = encoded.vectors.norm(dim=2)
        torch.testing.assert_close(lengths.sign() if name.startswith("camp") else lengths, mask.float())


@pytest.mark.parametrize("name", NAMES)
def test_a_small_byte_budget_changes_nothing(name, monkeypatch):
    settings = without_dropout(name)
    batch, model = make_batch(dtype=torch.float64), make_model(name, **settings).double().train()
    weights = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def run():
        model.load_state_dict(state)
        model.zero_grad()
        scores = model(batch).scores
        (scores * weights).sum().backward()
        grads = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        return scores.detach(), grads, {key: value.clone() for key, value in model.state_dict().items()}

    scores, grads, after = run()
    with torch.no_grad():
        whole = score_batch(model.eval(), batch)
    model.train()
    monkeypatch.setattr("selhn.ops.fragments.CPU_BYTE_BUDGET", 30_000)
    in_blocks, block_grads, after_blocks = run()
    torch.testing.assert_close(in_blocks, scores, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(block_grads, grads, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(after_blocks, after, rtol=1e-10, atol=1e-12, msg="running statistics")
    with torch.no_grad():
        torch.testing.assert_close(score_batch(model.eval(), batch), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("like_texts", [1, 2, 5])
def test_texts_of_like_length_are_scored_together(name, like_texts, monkeypatch):
    settings = without_dropout(name)
    model, batch = make_model(name, **settings).double().train(), make_batch(7, dtype=torch.float64)
    assert len(batch.token_mask.sum(1).unique()) > 2
    weights = torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def run():
        model.load_state_dict(state)
        scores = model(batch).scores
        parameters = [p for p in model.parameters() if p.requires_grad]
        return [scores.detach(), *torch.autograd.grad((scores * weights).sum(), parameters), *model.buffers()]

    together = [part.clone() for part in run()]
    widths = []
    split = Fragments.split
    monkeypatch.setattr(
        Fragments,
        "split",
        lambda some, size: [widths.append(part.trimmed().mask.shape) or part for part in split(some, size)],
    )
    monkeypatch.setattr("selhn.ops.pairing.CPU_TEXTS", like_texts)
    for ours, expected in zip(run(), together, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)
    assert len({width for count, width in widths if count <= like_texts}) > 1, (
        "some blocks are shorter than others"
    )
    monkeypatch.setattr("selhn.ops.fragments.RAGGED_DEVICES", ())
    for ours, expected in zip(run(), together, strict=True):
        torch.testing.assert_close(
            ours, expected, rtol=1e-9, atol=1e-11, msg="with all the padding, as on a GPU"
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_pairs_alone_score_as_among_all(name, training):
    settings = without_dropout(name)
    model, batch = make_model(name, **settings).double(), make_batch(6, dtype=torch.float64)
    images, texts = encode_batch(model, batch)
    model.train(training)
    image, text = torch.tensor([0, 3, 3, 5, 1, 0, 2]), torch.tensor([4, 3, 0, 5, 1, 4, 1])
    assert model.pairs_apart == (name not in ("saf", "naaf"))
    if training and not model.pairs_apart:
        with pytest.raises(ValueError, match="in training .*: score"):
            model.activation(model.logits(images[image], texts[text], aligned=True))
        return
    alone, among = (
        model.activation(model.logits(images[image], texts[text], aligned=True)),
        model.score(images, texts)[image, text],
    )
    torch.testing.assert_close(alone, among, rtol=0, atol=1e-12)
    weights = torch.randn(7, dtype=torch.float64)
    parameters = [p for p in model.parameters() if p.requires_grad]
    mine = torch.autograd.grad((alone * weights).sum(), parameters, retain_graph=True)
    for ours, theirs in zip(mine, torch.autograd.grad((among * weights).sum(), parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_do_not_depend_on_values(name, monkeypatch):
    # A fake tensor has no values: whatever asks for one, or for a shape that depends on one, raises. On a CPU shapes
    # are free, but not where it stands for a GPU.
    monkeypatch.setattr("selhn.ops.fragments.RAGGED_DEVICES", ())
    batch = make_batch()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = create_model(name, **CASES[name]).train()
        fake = batch.each(torch.empty_like)
        with pytest.raises(DataDependentOutputException):
            fake.token_mask.sum().item()
        model(fake).scores.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_starting_values():
    model = create_model("scan_t2i_avg", vocab_size=500, feature_dim=64, dim=32, word_dim=16)
    assert not model.image.fc.bias.any()
    assert model.image.fc.weight.abs().max() <= math.sqrt(6 / (64 + 32))
    assert 0.09 < model.text.words.embed.weight.abs().max() <= 0.1


@pytest.mark.parametrize("name", NAMES)
def test_ranking_is_by_the_numbers_before_a_sigmoid(name):
    model, batch = make_model(name), make_batch()
    images, texts = encode_batch(model, batch)
    numbers, scores = model.logits(images, texts), model.score(images, texts)
    assert torch.equal(scores, numbers.sigmoid() if model.sigmoid else numbers)


def pair_of(model, number=3):
    """A pair of a batch, with padding."""
    batch = make_batch()
    images, texts = encode_batch(model, batch)
    return images[number : number + 1], texts[number : number + 1]


@pytest.mark.parametrize("name", NAMES)
def test_attention_of_a_pair(name):
    model = make_model(name)
    images, texts = pair_of(model)
    attention = model.attention(images, texts)
    num_words, num_regions = int(texts.mask.sum()), int(images.mask.sum())
    assert num_words < texts.mask.shape[1]
    assert num_regions < images.mask.shape[1]
    assert (attention.of_words is None) == (name in ("scan_i2t_avg", "scan_i2t_lse", "imram_image"))
    of_words_alone = ("scan_t2i", "imram_text", "sgr", "saf", "naaf")
    assert (attention.of_regions is None) == name.startswith(of_words_alone)
    for weights, axis in ((attention.of_words, 1), (attention.of_regions, 0)):
        if weights is not None:
            assert weights.shape == (num_words, num_regions)
            torch.testing.assert_close(weights.sum(axis), torch.ones_like(weights.sum(axis)))
    assert attention.words == tuple(map(str, range(num_words)))
    assert abs(attention.score - model.score(images, texts).item()) < 1e-6
    assert attention.weights is (attention.of_regions if attention.of_words is None else attention.of_words)
    # The other way round, from the weights to the score: the mean cosine with what is looked at.
    words, regions = texts.vectors[0][texts.mask[0]], images.vectors[0][images.mask[0]]
    seen = [] if attention.of_words is None else [(words, attention.of_words @ regions)]
    seen += [] if attention.of_regions is None else [(regions, attention.of_regions.T @ words)]
    if name.endswith("avg") or name.startswith("bfan"):
        score = sum(torch.cosine_similarity(looking, looked_at, dim=1).mean() for looking, looked_at in seen)
        assert abs(attention.score - score.item()) < 1e-5


def test_what_saf_keeps_of_each_word():
    model = make_model("saf")
    images, texts = pair_of(model)
    kept, before = model.attention(images, texts).kept, model.score(images, texts).item()
    assert kept.shape == (int(texts.mask.sum()),)
    assert 0 < float(kept.sum()) < 1
    assert make_model("sgr").attention(*pair_of(make_model("sgr"))).kept is None
    with torch.no_grad():
        model.head.reasoning.attention.weight.zero_()
    equal = model.attention(images, texts)
    torch.testing.assert_close(equal.kept, torch.full_like(kept, 1 / (len(kept) + 1)))
    assert equal.score != before


def test_attention_is_of_one_pair():
    model, batch = make_model("scan_t2i_avg"), make_batch()
    images, texts = encode_batch(model, batch)
    with pytest.raises(ValueError, match="one image and one text, got 6 and 1"):
        model.attention(images, texts[:1])


@pytest.mark.parametrize("name", NAMES)
def test_scores_from_what_is_ranked_by(name):
    model = make_model(name)
    images, texts = pair_of(model)
    assert torch.equal(model.activation(model.logits(images, texts)), model.score(images, texts))


@pytest.mark.parametrize("length", [1, 1e3, 1e5])
def test_fragments_of_any_length_are_scored_in_float16(length):
    """CAMP's are not scaled to length 1, and float16, which a GPU uses for scoring, ends at 65,504."""
    model, batch = make_model("camp").eval(), make_batch()
    with torch.no_grad():
        model.image.fc.weight.mul_(length)
        encoded = encode_batch(model, batch)
        whole = model.score(*encoded)
        with torch.autocast("cpu", dtype=torch.float16):
            half = model.score(*encoded)
    torch.testing.assert_close(half.float(), whole, rtol=0, atol=5e-3)
