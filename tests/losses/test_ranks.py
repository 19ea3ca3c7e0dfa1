"""`across_ranks` in one process, and what it refuses; several processes are in tests/training/test_ranks.py."""

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.losses import AOQ, NCR, InfoNCE, TripletSelHN, across_ranks


def test_without_ranks_it_is_the_loss():
    images, texts = torch.randn(2, 8, 4)
    assert torch.equal(across_ranks(InfoNCE())(images, texts), InfoNCE().from_embeddings(images, texts))


@pytest.mark.parametrize("loss", [NCR(), AOQ(), TripletSelHN(reduction="none")])
def test_what_it_cannot_be(loss):
    with pytest.raises(SelhnError):
        across_ranks(loss)
