"""NCR: two networks that tell true pairs from wrong ones for each other (Huang et al., NeurIPS 2021)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.types import Batch, Match
from selhn.data import Batches, Pairs
from selhn.losses import NCR, PairLabels
from selhn.models import in_eval_mode
from selhn.models.matcher import members
from selhn.training.protocols.base import Protocol


class CoDivide(Protocol):
    """Before every epoch after the warm-up: losses of all pairs, two Gaussians, labels for both networks.

    For each network, l_i is the loss of pair i in a random batch (`NCR.pair_losses`), w_i the posterior of
    the component with the lower mean, P_i the prediction of `NCR.predict`. A pair is true if w_i of the
    *other* network is above 1/2:

        y_i = w_i + (1 - w_i) P_i                    for true pairs, w of the other network, P of its own
        y_i = (P_i of one + P_i of the other) / 2    for wrong pairs, used from the middle of the run on

    A model with one network is its own other. Both networks see the same batch and are updated in one step.
    """

    # Official: predictions are made in every step, and true and wrong pairs have batches of their own, with
    # an update for each. Here a label holds for an epoch, and a batch has both kinds.

    in_parts = False
    networks = 2
    loss: NCR

    def __post_init__(self) -> None:
        if self.config.two_pass and self.loss.margin_of == "image":
            raise SelhnError("ncr with margin_of=image moves its hardest negatives: leave two_pass=false")
        split, batches, device = self.data.train, self.batches, self.batches.device
        size = (len(members(self.model)), split.num_texts)
        self.tables["labels"] = torch.ones(size, device=device)
        self.tables["trained"] = torch.ones(size, dtype=torch.bool, device=device)
        self._plain = Batches(split, batches.tokenizer, batches.batch_size, seed=self.config.seed, device=device,
            side=batches.side)  # fmt: skip

    def begin_epoch(self, epoch: int) -> None:
        if self.loss.warming_up:
            return
        losses, predictions = self.survey(epoch)
        probability = torch.stack([clean_probability(of_one) for of_one in losses]).flip(0)
        is_true = torch.stack([above_threshold(of_one) for of_one in probability])
        labels = torch.where(is_true, probability + (1 - probability) * predictions, predictions.mean(dim=0))
        self.tables["labels"].copy_(labels)
        self.tables["trained"].copy_(is_true if 2 * epoch < self.config.epochs else torch.ones_like(is_true))

    def match(self, pairs: Pairs, batch: Batch) -> tuple[Match, PairLabels]:
        match, _ = super().match(pairs, batch)
        assert isinstance(match.scores, Tensor)
        labels, trained = (self.tables[name][:, pairs.texts] for name in ("labels", "trained"))
        if len(members(self.model)) == 1:
            return match, PairLabels(labels[0], trained[0])
        # Each network may have several matrices of scores, as CVSE has.
        shape = 2, *[1] * (match.scores.ndim - 3), len(pairs.texts)
        return match, PairLabels(labels.view(shape), trained.view(shape))

    def survey(self, epoch: int) -> tuple[Float[Tensor, "k T"], Float[Tensor, "k T"]]:
        """Loss and prediction of every training pair by each network, among the pairs of a random batch."""
        order, size = self._plain.order(epoch), self._plain.batch_size
        found = torch.zeros(2, *self.tables["labels"].shape, device=self._plain.device)
        with in_eval_mode(self.model):
            for first in range(0, len(order), size):
                # The last batch is as large as the others: a loss depends on the number of pairs.
                texts = order[min(first, len(order) - size) :][:size]
                batch = self._plain.assemble_rows(texts)
                image_ids = self.image_ids(batch)
                scores = self.model(batch).scores
                scores = scores if scores.ndim == 3 else scores[None]
                rows = texts.to(found.device)
                found[0][:, rows] = self.loss.pair_losses(scores, image_ids)
                found[1][:, rows] = self.loss.predict(scores, image_ids)
        return found[0], found[1]


def clean_probability(losses: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """How probably each pair is of the kind with the lower losses; 1 where all losses are equal."""
    spread = losses.max() - losses.min()
    if not spread > 0:
        return torch.ones_like(losses)
    scaled = (losses - losses.min()).double() / spread
    return fit_two_gaussians(scaled).posterior(scaled)[0].to(losses)


def above_threshold(probability: Float[Tensor, " T"]) -> Bool[Tensor, " T"]:
    """Which pairs count as true; if all would, the least probable hundredth does not."""
    threshold = probability.new_tensor(0.5)
    if probability.min() > threshold:
        # Not quantile(), which refuses more than 16 million values.
        threshold = probability.kthvalue(max(1, round(0.01 * len(probability)))).values
        if threshold == probability.max():  # nothing tells any from the others
            return torch.ones_like(probability, dtype=torch.bool)
    return probability > threshold


@dataclass(frozen=True)
class TwoGaussians:
    """p(x) = sum_k weight_k N(x; mean_k, variance_k), the component with the lower mean first; in float64."""

    weight: Float[Tensor, "2"]
    mean: Float[Tensor, "2"]
    variance: Float[Tensor, "2"]

    def log_joint(self, values: Float[Tensor, " n"]) -> Float[Tensor, "2 n"]:
        """log(weight_k N(x; mean_k, variance_k))."""
        squared = (values.double() - self.mean[:, None]).square() / self.variance[:, None]
        tiny = torch.finfo(torch.float64).tiny
        return self.weight.clamp(min=tiny).log()[:, None] - 0.5 * (
            squared + (2 * math.pi * self.variance[:, None]).log()
        )

    def posterior(self, values: Float[Tensor, " n"]) -> Float[Tensor, "2 n"]:
        return self.log_joint(values).softmax(dim=0)

    @classmethod
    def of(
        cls, values: Float[Tensor, " n"], share: Float[Tensor, "2 n"], least_variance: float = 0.0
    ) -> "TwoGaussians":
        """The maximisation step: each component from its share of the values."""
        values = values.double()
        count = share.sum(dim=1).clamp(min=10 * torch.finfo(torch.float64).eps)
        mean = (share * values).sum(dim=1) / count
        variance = (share * (values - mean[:, None]).square()).sum(dim=1) / count + least_variance
        order = mean.argsort(stable=True)
        return cls((count / len(values))[order], mean[order], variance[order])


def fit_two_gaussians(
    values: Float[Tensor, " n"], max_steps: int = 10, tolerance: float = 1e-2, least_variance: float = 5e-4
) -> TwoGaussians:
    """EM from the halves that 2-means finds, until the mean log-likelihood changes by less than `tolerance`.

    The defaults are those of Huang et al. (NCR, 2021), who fit losses between 0 and 1; `least_variance` is
    added to both variances. As in the program they use, the step in which so small a change is seen is still
    taken.
    """
    values = values.double()
    mixture = TwoGaussians.of(values, _two_means(values), least_variance)
    before = -math.inf
    for _ in range(max_steps):
        likelihood = float(mixture.log_joint(values).logsumexp(dim=0).mean())
        mixture = TwoGaussians.of(values, mixture.posterior(values), least_variance)
        if abs(likelihood - before) < tolerance:
            break
        before = likelihood
    return mixture


def _two_means(values: Float[Tensor, " n"]) -> Float[Tensor, "2 n"]:
    """Each value wholly in the nearer of two means, which start at the least and the greatest value."""
    low, high = values.min(), values.max()
    upper = values > (low + high) / 2
    for _ in range(100):
        if not upper.any():  # all values are equal
            break
        moved = values > (values[~upper].mean() + values[upper].mean()) / 2
        if torch.equal(moved, upper):
            break
        upper = moved
    return torch.stack([~upper, upper]).double()
