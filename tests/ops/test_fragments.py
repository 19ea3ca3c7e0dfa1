from dataclasses import replace

import pytest
import torch

from selhn.ops import Fragments, Pairing, attended_cosines, pairing


def padded(items, size, whole=False):
    mask = torch.arange(size) < torch.arange(1, items + 1)[:, None]
    some = Fragments.of(torch.randn(items, size, 3), mask)
    return replace(some, whole=torch.randn(items, 3)) if whole else some


def test_padding_is_zero():
    some = padded(3, 4)
    assert not some.vectors[~some.mask].any()
    assert some.vectors[some.mask].all()


def test_gradients_do_not_reach_padding():
    vectors = torch.randn(2, 3, 4, requires_grad=True)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    Fragments.of(vectors, mask).vectors.sum().backward()
    assert torch.equal(vectors.grad[:, :, 0], mask.float())


def test_cut_and_joined_it_is_the_same():
    for whole in (False, True):
        some = padded(7, 5, whole)
        parts = some.split(3)
        assert [len(part) for part in parts] == [3, 3, 1]
        joined = Fragments.joined(parts, 7, 5)
        assert torch.equal(joined.vectors, some.vectors)
        assert torch.equal(joined.mask, some.mask)
        assert (joined.whole is None) == (not whole)
        turned = some[torch.arange(6, -1, -1)]
        assert torch.equal(turned.vectors, some.vectors.flip(0))
        if whole:
            assert torch.equal(joined.whole, some.whole)
            assert torch.equal(turned.whole, some.whole.flip(0))


@pytest.mark.parametrize("expected", [1, 5])
def test_items_of_other_lengths_are_padded(expected):
    short, long = padded(2, 2), padded(3, 5)
    joined = Fragments.joined([short, long], 5, expected)
    assert joined.vectors.shape == (5, 5, 3)
    assert torch.equal(joined.vectors[2:], long.vectors)
    assert torch.equal(joined.vectors[:2, :2], short.vectors)
    assert torch.equal(joined.mask[:2, :2], short.mask)
    assert not joined.mask[:2, 2:].any()
    assert not joined.vectors[:2, 2:].any()


def test_trimmed_to_the_longest():
    some = padded(3, 6, whole=True)
    assert some.trimmed().mask.shape == (3, 3)
    assert some.trimmed().vectors.shape == (3, 3, 3)
    assert torch.equal(some.trimmed().whole, some.whole)
    gap = Fragments.of(torch.randn(1, 4, 3), torch.tensor([[False, False, True, False]]))
    assert gap.trimmed().mask.tolist() == [[False, False, True]]
    nothing = Fragments.of(torch.randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.bool))
    assert nothing.trimmed().mask.shape == (2, 1)


def test_products_with_each_other_are_made_once_and_cut_along():
    some = padded(4, 3).with_gram()
    torch.testing.assert_close(some.gram, some.vectors @ some.vectors.mT)
    assert some.with_gram() is some
    with torch.autocast("cpu", torch.bfloat16):
        assert padded(4, 3).with_gram().gram.dtype == torch.float32
    assert torch.equal(some[1:3].gram, some.gram[1:3])
    assert torch.equal(some[torch.tensor([3, 0])].gram, some.gram[[3, 0]])


def test_to_a_device():
    moved = padded(2, 2, whole=True).to("meta")
    assert {moved.vectors.device.type, moved.mask.device.type, moved.whole.device.type} == {"meta"}


def block_score(images, texts):
    return attended_cosines(Pairing(images, texts), 9.0).masked_fill(~texts.mask.T, 0).sum(1)


def score_in_blocks(score, images, texts, numbers, all_images=False):
    return Pairing(images, texts).scored(
        lambda some: score(some.contexts, some.queries), products=0, pairs=numbers, all_images=all_images
    )


@pytest.mark.parametrize("budget", [1, 5, 11, 19, 1000])
@pytest.mark.parametrize("all_images", [False, True])
def test_blocks_give_the_same_scores_and_gradients(budget, all_images):
    torch.manual_seed(0)
    shapes = (5, 3, 4), (6, 4, 4)
    image_vectors, text_vectors = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes
    )
    image_mask, text_mask = padded(5, 3).mask, padded(6, 4).mask
    sizes = []

    def counted(images, texts):
        sizes.append((len(images), len(texts)))
        return block_score(images, texts)

    def run(score):
        scores = score(Fragments.of(image_vectors, image_mask), Fragments.of(text_vectors, text_mask))
        return scores, *torch.autograd.grad(scores.square().sum(), [image_vectors, text_vectors])

    ours = run(lambda i, t: score_in_blocks(counted, replace(i, byte_budget=4 * budget), t, 1, all_images))
    for mine, theirs in zip(ours, run(block_score), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    if all_images:
        assert {images for images, _ in sizes} == {5}
    else:
        assert all(images * texts <= max(1, budget) for images, texts in sizes)
    assert (len(sizes) == 1) == (budget >= 30), "more than one block is computed again in the backward pass"


@pytest.mark.parametrize("budget", [7, 1000])
def test_texts_are_sorted_and_cut_without_padding(budget, monkeypatch):
    monkeypatch.setattr(pairing, "CPU_TEXTS", 2)
    images, order = padded(3, 4), torch.tensor([4, 0, 3, 1, 2, 5])
    texts = padded(6, 9)[order]
    seen = []

    def counted(some_images, some_texts):
        seen.append((len(some_images), tuple(some_texts.mask.shape)))
        return block_score(some_images, some_texts)

    with torch.no_grad():
        scores = score_in_blocks(counted, replace(images, byte_budget=4 * budget), texts, 1)
    torch.testing.assert_close(scores, block_score(images, texts))
    if budget == 1000:
        assert seen == [(3, (2, 6)), (3, (2, 4)), (3, (2, 2))]


def test_without_gradients_nothing_is_kept_for_them(monkeypatch):
    some = padded(4, 3)
    monkeypatch.setattr(pairing, "again", None)
    with torch.no_grad():
        assert score_in_blocks(block_score, replace(some, byte_budget=12), some, 1).shape == (4, 4)


@pytest.mark.parametrize(("images", "texts"), [(0, 3), (3, 0)])
def test_nothing_to_score(images, texts):
    some = replace(padded(images, 2), byte_budget=8)
    assert score_in_blocks(block_score, some, padded(texts, 2), 1).shape == (images, texts)


def test_several_results_are_joined_place_by_place():
    images, texts = replace(padded(7, 4), byte_budget=320), padded(6, 5)
    sizes = []

    def score(some_images, some_texts):
        sizes.append(len(some_images) * len(some_texts))
        sums = some_images.vectors.sum((1, 2))[:, None] + some_texts.vectors.sum((1, 2))
        return sums, sums.square()

    in_blocks = score_in_blocks(score, images, texts, 10)
    assert max(sizes) <= 8
    assert sum(sizes) == 42
    for ours, whole in zip(in_blocks, score(images, texts), strict=True):
        assert torch.equal(ours, whole)
