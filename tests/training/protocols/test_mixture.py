import math

import pytest
import torch

from selhn.training.protocols.co_divide import TwoGaussians, fit_two_gaussians

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


def test_maximisation_by_hand():
    # The second component has the lower mean, and so comes first.
    values = torch.tensor([3.0, 5.0, 0.0, 2.0])
    share = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
    mixture = TwoGaussians.of(values, share, least_variance=0.5)
    assert mixture.mean.tolist() == [1.0, 4.0]
    assert mixture.variance.tolist() == [1.5, 1.5]
    assert mixture.weight.tolist() == [0.5, 0.5]
    divided = torch.tensor([[0.25, 0.5, 0.75, 0.5], [0.75, 0.5, 0.25, 0.5]], dtype=torch.float64)
    mixture = TwoGaussians.of(values, divided)
    torch.testing.assert_close(mixture.mean, torch.tensor([4.25 / 2, 5.75 / 2], dtype=torch.float64))


def test_expectation_by_hand():
    mixture = TwoGaussians(HALF, torch.tensor([0.0, 2.0]).double(), torch.tensor([1.0, 1.0]).double())
    # Equal variances: the log-odds are linear, 2 - 2x, and even in the middle.
    posterior = mixture.posterior(torch.tensor([1.0, 0.0, 3.0]))[0]
    expected = [0.5, 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(4))]
    torch.testing.assert_close(posterior, torch.tensor(expected, dtype=torch.float64))
    density = mixture.log_joint(torch.tensor([0.5])).exp()[0, 0]
    assert density == pytest.approx(0.5 * math.exp(-0.125) / math.sqrt(2 * math.pi))


def test_a_known_mixture_is_found_again():
    generator = torch.Generator().manual_seed(0)
    low = 0.1 + 0.05 * torch.randn(7000, generator=generator)
    high = 0.6 + 0.15 * torch.randn(3000, generator=generator)
    mixture = fit_two_gaussians(torch.cat([high, low]), max_steps=200, tolerance=1e-9, least_variance=0.0)
    torch.testing.assert_close(mixture.mean, torch.tensor([0.1, 0.6]).double(), rtol=0, atol=0.01)
    torch.testing.assert_close(
        mixture.variance.sqrt(), torch.tensor([0.05, 0.15]).double(), rtol=0, atol=0.01
    )
    torch.testing.assert_close(mixture.weight, torch.tensor([0.7, 0.3]).double(), rtol=0, atol=0.01)
    assert (mixture.posterior(low)[0] > 0.5).double().mean() > 0.98


def test_the_likelihood_never_falls():
    values = torch.rand(200, generator=torch.Generator().manual_seed(1)).square()
    fits = [
        fit_two_gaussians(values, max_steps=steps, tolerance=0.0, least_variance=0.0) for steps in range(8)
    ]
    likelihood = [float(fit.log_joint(values).logsumexp(0).mean()) for fit in fits]
    assert all(later >= earlier - 1e-12 for earlier, later in zip(likelihood, likelihood[1:]))
    assert likelihood[-1] > likelihood[0]


def test_few_steps_are_what_the_authors_take():
    values = torch.rand(200, generator=torch.Generator().manual_seed(1))
    # The first step has nothing to compare with; the second sees that little has changed, and is the last.
    patient = fit_two_gaussians(values, tolerance=9e9)
    assert torch.equal(patient.mean, fit_two_gaussians(values, max_steps=2, tolerance=0.0).mean)
    ten = fit_two_gaussians(values, tolerance=0.0)
    assert torch.equal(ten.mean, fit_two_gaussians(values, max_steps=10, tolerance=0.0).mean)
    assert not torch.equal(ten.mean, fit_two_gaussians(values, max_steps=11, tolerance=0.0).mean)


@pytest.mark.parametrize("values", [torch.full((5,), 0.3), torch.tensor([0.0, 1.0]), torch.tensor([0.4])])
def test_hardly_any_values(values):
    posterior = fit_two_gaussians(values).posterior(values)
    assert posterior.isfinite().all()
    torch.testing.assert_close(posterior.sum(0), torch.ones(len(values), dtype=torch.float64))
