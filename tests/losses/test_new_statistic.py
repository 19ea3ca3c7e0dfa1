"""Statistics of outside packages, without derivatives, in every form; several processes: training/test_ranks.py."""

import pytest
import torch
from loss_cases import MeanOfHardest, blocks_of, make_embeddings, make_ids, plain_torch

from selhn.losses import STATISTICS, AbstractLoss, Statistic, hinge
from selhn.training.protocols.two_pass import pulled_pairs


class Custom(AbstractLoss):
    """The hinge of whichever statistic."""

    needs = ("custom",)

    def anchor_loss(self, anchors):
        return hinge(anchors["custom"].clamp(min=-9), anchors.positive, self.margin)


STATISTICS_OF_OTHERS = {
    "any reduction": Statistic(lambda terms: terms.topk(3, dim=-1).values.mean(dim=-1)),
    "a maximum of a term": Statistic("max", lambda n, p: (n - p).tanh() - p / 3),
    "a maximum of its own": Statistic("max", lambda n: n - n.clamp(min=-9).square() / 3, alone=True),
    "a sum": Statistic("sum", lambda n, p: (n - p).sigmoid() * (1 + p)),
    "a sum of its own": Statistic("sum", lambda n: n.clamp(min=-50).exp(), alone=True),
    "a log-sum-exp": Statistic("logsumexp", lambda n, p: (n - p) * 3),
    "a log-sum-exp of its own": Statistic("logsumexp", lambda n: 2 * n, alone=True),
}


@pytest.mark.parametrize("height", [40, 7])
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("kind", STATISTICS_OF_OTHERS)
def test_its_gradient_is_that_of_autograd_in_every_form(kind, with_ids, height, monkeypatch):
    monkeypatch.setitem(STATISTICS, "custom", STATISTICS_OF_OTHERS[kind])
    images, texts = make_embeddings("trained", 40, 8, 0)
    loss, ids = Custom(), make_ids(40, 0) // 3 if with_ids else None

    def found(call):
        value = call()
        return value, *torch.autograd.grad(value, (images, texts))

    with plain_torch():
        truth = found(lambda: loss(images @ texts.T, ids))
    assert truth[1].any()
    with blocks_of(height):
        for call in (lambda: loss(images @ texts.T, ids), lambda: loss.from_embeddings(images, texts, ids)):
            for expected, actual in zip(truth, found(call), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_beside_other_statistics():
    class Both(MeanOfHardest):
        needs = ("hardest", "five_hardest")

        def anchor_loss(self, anchors):
            return super().anchor_loss(anchors) + hinge(anchors["hardest"], anchors.positive, self.margin)

    images, texts = make_embeddings("trained", 40, 8, 0)
    whole = Both()(images @ texts.T)
    torch.testing.assert_close(Both().from_embeddings(images, texts), whole, rtol=1e-12, atol=1e-12)
    assert not Both().mines


def test_a_maximum_of_others_mines(monkeypatch):
    monkeypatch.setitem(STATISTICS, "custom", STATISTICS_OF_OTHERS["a maximum of its own"])
    assert Custom().mines
    assert len(pulled_pairs(torch.randn(4, 4), None, Custom().needs)) == 12
