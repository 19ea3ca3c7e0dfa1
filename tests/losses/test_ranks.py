"""`across_ranks` in one process, and what it refuses; several processes are in tests/training/test_ranks.py."""

import warnings

import pytest
import torch
from torch.nn.functional import normalize

from selhn.base.errors import SelhnError, SelhnWarning
from selhn.base.ranks import Processes
from selhn.losses import AOQ, NCR, InfoNCE, TripletSelHN, across_ranks


def test_without_ranks_it_is_the_loss():
    images, texts = torch.randn(2, 8, 4)
    whole, own = InfoNCE().from_embeddings(images, texts), across_ranks(InfoNCE())
    assert torch.equal(own.from_embeddings(images, texts), whole)
    assert torch.equal(own(images, texts), whole)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("loss", [NCR(), AOQ(), TripletSelHN(reduction="none"), torch.nn.functional.mse_loss])
def test_what_it_cannot_be(loss):
    with pytest.raises(SelhnError):
        across_ranks(loss)


class Mirrored(Processes):
    """Two ranks that have the same."""

    def all(self, own):
        return torch.stack([own, own])

    def sum(self, own):
        return 2 * own


def test_only_a_global_batch_without_negatives_is_warned_of(monkeypatch):
    monkeypatch.setattr(Processes, "of", lambda group: Mirrored(0, 2))
    one = normalize(torch.randn(1, 4), dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        across_ranks(TripletSelHN())(one, one)  # this rank has one pair, and both have two
    with pytest.warns(SelhnWarning, match="no negatives"):
        across_ranks(TripletSelHN())(one, one, [3])
    with pytest.raises(SelhnError):
        across_ranks(TripletSelHN())(one, one, [3, 4])


class Unlike(Mirrored):
    """Two ranks, of which the other has said the opposite."""

    def all(self, own):
        return torch.stack([own, torch.tensor([own[0], 1 - own[1]])])


@pytest.mark.parametrize("ids", [None, [3]])
def test_ids_on_some_ranks_only_are_refused_and_no_rank_waits(monkeypatch, ids):
    monkeypatch.setattr(Processes, "of", lambda group: Unlike(0, 2))
    one = normalize(torch.randn(1, 4), dim=1)
    with pytest.raises(SelhnError):
        across_ranks(TripletSelHN())(one, one, ids)
