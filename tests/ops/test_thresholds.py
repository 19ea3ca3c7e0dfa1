"""The kernels against the loop over texts in float64, on a GPU; or anywhere that has Triton, in its interpreter:

TRITON_INTERPRET=1 pytest -W ignore tests/ops/test_thresholds.py
"""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from model_cases import make_batch, make_model
from torch.utils._python_dispatch import TorchDispatchMode

from selhn.ops import thresholds, unit
from selhn.ops.thresholds import ThresholdRule, walk_texts

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
fused = pytest.mark.usefixtures("interpreter") if INTERPRETED else pytest.mark.gpu
# Pairs, regions, words: one of everything, odd ones, a power of two of regions, more words than images.
SIZES = [(1, 1, 1), (5, 3, 4), (9, 16, 5), (12, 20, 12), (4, 5, 40)]


@pytest.fixture
def interpreter(monkeypatch):
    monkeypatch.setattr("selhn.ops.gpu.fusable", lambda *tensors: True)


def make(size, seed=0):
    """Texts whose words are like regions of their images, in any order, with padding of words and regions."""
    pairs, regions, words = size
    generator = torch.Generator().manual_seed(seed)
    images = unit(torch.randn(pairs, regions, 16, generator=generator, dtype=torch.float64))
    own = torch.randperm(pairs, generator=generator)
    places = torch.randint(regions, (pairs, words, 1), generator=generator).expand(-1, -1, 16)
    noise = 0.3 * torch.randn(pairs, words, 16, generator=generator, dtype=torch.float64)
    texts = unit(images[own].gather(1, places) + noise)
    token_mask = torch.arange(words) < torch.randint(1, words + 1, (pairs, 1), generator=generator)
    region_mask = torch.arange(regions) < torch.randint(1, regions + 1, (pairs, 1), generator=generator)
    images[~region_mask], texts[~token_mask] = 0, 0
    dots = torch.einsum("ikd,qld->iklq", images, texts)
    best = dots.masked_fill(~region_mask[:, :, None, None], -1).amax(1).masked_fill(~token_mask.T, 0)
    matched = 0.05 * torch.randn(pairs, pairs, generator=generator, dtype=torch.float64)
    given = dots, best, matched, images @ images.mT
    return given, token_mask, own


@fused
@pytest.mark.parametrize("min_words", [0, 12, 1000])
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_loop(size, min_words):
    rule = ThresholdRule(20.0, 1.9, min_words)
    state = torch.tensor([0.3, 0.2, 0, 0, 0, 0, 0], dtype=torch.float64)
    given, token_mask, own = make(size)
    single = [part.float() for part in given]
    expected = walk_texts(*(part.double() for part in single), token_mask, own, state, rule)
    ours = walk_texts(*(part.to(DEVICE) for part in (*single, token_mask, own, state)), rule)
    for mine, true in zip(ours, expected, strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine.cpu(), true, rtol=1e-6, atol=1e-6)


@fused
def test_equal_products_and_texts_in_two_parts():
    given, token_mask, own = make((8, 6, 9))
    rule, state = ThresholdRule(20.0, 1.9, 10), torch.zeros(7, dtype=torch.float64)
    dots, best, matched, gram = (part.float() for part in given)
    dots, best = (dots * 8).round() / 8, (best * 8).round() / 8  # up to six equal ones
    whole = walk_texts(*(p.double() for p in (dots, best, matched, gram)), token_mask, own, state, rule)
    assert whole[0].unique().numel() > 2
    used = []
    for some in (slice(0, 3), slice(3, None)):
        part = [dots[..., some], best[..., some], matched[:, some], gram, token_mask[some], own[some], state]
        of_part, state = walk_texts(*(tensor.to(DEVICE) for tensor in part), rule)
        used.append(of_part)
    torch.testing.assert_close(torch.cat(used).cpu(), whole[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state.cpu(), whole[1], rtol=1e-6, atol=1e-6)


@fused
def test_naaf_learns_by_the_kernels_as_by_the_loop(monkeypatch):
    batch, weights = make_batch(9).to(DEVICE), torch.randn(9, 9).to(DEVICE)

    def run():
        model = make_model("naaf", threshold=0.1).to(DEVICE).train()
        scores = model(batch).scores
        grads = torch.autograd.grad((scores * weights).sum(), [model.image.fc.weight])
        return scores, *grads, model.head.thresholds.both()

    ours = run()
    monkeypatch.setattr(thresholds, "takes_float32", lambda *tensors: False)
    torch.testing.assert_close(ours, run(), rtol=1e-4, atol=1e-5)


class Count(TorchDispatchMode):
    operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        return function(*args, **(kwargs or {}))


def test_with_the_kernels_a_step_has_as_many_operations_for_any_batch(monkeypatch):
    def walk(dots, best, matched, gram, token_mask, own, collected, state, rule):
        return state[:1].expand(len(own)), state

    monkeypatch.setitem(sys.modules, "selhn.kernels.thresholds", SimpleNamespace(walk_texts=walk))
    monkeypatch.setattr(thresholds, "takes_float32", lambda *tensors: True)
    monkeypatch.setattr("selhn.ops.fragments.RAGGED_DEVICES", ())  # as on a GPU

    def operations(pairs):
        model, batch = make_model("naaf").train(), make_batch(pairs)
        with Count() as count:
            model(batch).scores.sum().backward()
        return count.operations

    assert operations(4) == operations(24)
