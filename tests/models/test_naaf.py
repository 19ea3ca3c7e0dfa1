import copy

import pytest
import torch
from model_cases import make_batch, make_model
from pair_oracle import scores_of

from selhn.base.errors import SelhnError
from selhn.models import create_model
from selhn.ops import Fragments, unit

SIZES = {"vocab_size": 1, "feature_dim": 1, "word_dim": 1}


def matching_pairs(pairs=9, regions=5, words=6, dim=16, seed=0):
    """Words that are like a region of their own image, in texts of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    vectors = unit(torch.randn(pairs, regions, dim, generator=generator, dtype=torch.float64))
    places = torch.randint(regions, (pairs, words, 1), generator=generator).expand(-1, -1, dim)
    noise = 0.15 * torch.randn(pairs, words, dim, generator=generator, dtype=torch.float64)
    mask = torch.arange(words) < torch.randint(3, words + 1, (pairs, 1), generator=generator)
    texts = Fragments.of(unit(vectors.gather(1, places) + noise), mask)
    return Fragments.of(vectors, torch.ones(pairs, regions, dtype=torch.bool)), texts


def test_the_threshold_of_every_text_is_that_of_the_equations():
    images, texts = matching_pairs()
    model = (
        create_model("naaf", **SIZES, dim=16, threshold=0.3, threshold_safe=0.1, min_words=15)
        .double()
        .train()
    )
    by_text = copy.deepcopy(model)
    scores = model.score(images, texts)
    own = [words[mask] for words, mask in zip(texts.vectors, texts.mask, strict=True)]
    naive = scores_of(by_text, list(images.vectors), own)
    torch.testing.assert_close(scores, naive, rtol=0, atol=1e-10)
    threshold, safe = model.head.thresholds.both().tolist()
    assert 0 < safe < 1
    assert 0 < threshold < 1
    torch.testing.assert_close(
        model.head.thresholds.both(), by_text.head.thresholds.both(), rtol=0, atol=1e-10
    )


def test_once_per_batch_all_texts_have_one_threshold():
    images, texts = matching_pairs()
    settings = {"dim": 16, "threshold": 0.3, "min_words": 15, "alpha": 1.5}
    model = create_model("naaf", **SIZES, **settings, mining="batch").double().train()
    assert model.head.mine(images, texts).tolist() == [0.3] * len(texts)
    after = model.head.thresholds.both()
    # All texts score their own image highest: all of their words match.
    matching = (images.vectors @ texts.vectors.mT).amax(1)[texts.mask]
    safe = matching.mean() - 3 * matching.std()
    torch.testing.assert_close(after[1], 0.7 * safe)
    assert after[1] < after[0] < 1


def test_a_small_batch_leaves_no_threshold():
    images, texts = matching_pairs(pairs=3)
    model = create_model("naaf", **SIZES, dim=16, threshold=0.3, threshold_safe=0.2).double().train()
    assert model.head.mine(images, texts).unique().tolist() == [0.0, 0.3]
    assert model.head.thresholds.both().tolist() == [0.0, 0.0]


def test_a_threshold_is_between_0_and_1():
    with pytest.raises(SelhnError):
        create_model("naaf", **SIZES, dim=16, threshold_safe=-0.1)


def test_training_needs_pairs():
    model, batch = make_model("naaf").train(), make_batch()
    images = model.encode_images(batch.regions, batch.region_mask)
    texts = model.encode_texts(batch.tokens, batch.token_mask)
    with pytest.raises(SelhnError):
        model.score(images, texts[:3])


def test_words_that_nothing_matches_count_against_a_pair():
    images, texts = matching_pairs()
    model = create_model("naaf", **SIZES, dim=16).double().eval()
    before = model.score(images, texts)
    model.head.thresholds.store(torch.tensor([0.0, 0.6]))
    after = model.score(images, texts)
    wrong = ~torch.eye(len(texts), dtype=torch.bool)
    assert (after - before)[wrong].mean() < -0.2
    assert (after - before).diagonal().abs().max() < 0.05
