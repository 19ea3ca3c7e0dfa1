"""Two Gaussians in one dimension, fitted by expectation and maximisation."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


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
        """How probably each value comes from each component."""
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
    """EM from the two halves that 2-means finds, until the mean log-likelihood changes by less than `tolerance`.

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
