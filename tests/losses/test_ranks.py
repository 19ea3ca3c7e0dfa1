"""Several processes with parts of a batch train as one with all of it: value and gradients, for every loss."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loss_cases import CASES

from selhn.base.errors import SelhnError
from selhn.losses import AOQ, NCR, InfoNCE, TripletHN, TripletSelHN, across_ranks

PROGRAM = Path(__file__).parent / "ranks_program.py"
sys.path.insert(0, str(PROGRAM.parent))


def run(ranks, folder):
    command = [sys.executable, str(PROGRAM)]
    started = [subprocess.Popen([*command, str(rank), str(ranks), str(folder)]) for rank in range(ranks)]
    assert [process.wait(timeout=240) for process in started] == [0] * ranks
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_as_one_process(tmp_path, ranks):
    import ranks_program

    found, made = run(ranks, tmp_path), ranks_program.losses()
    assert found.keys() >= made.keys()
    assert len(made) > 0.6 * len(CASES)
    for name, loss in made.items():
        torch.testing.assert_close(found[name], ranks_program.whole(loss), rtol=1e-10, atol=1e-12, msg=name)
    truth = ranks_program.whole(TripletSelHN())
    alone = found["wrong: each rank alone"]
    assert torch.cosine_similarity(alone[1:], truth[1:], dim=0) < 0.99, "another loss is trained"
    truth = ranks_program.whole(TripletHN())
    shrunk = found["wrong: gathered without gradient"]
    assert shrunk[1:].norm() < 0.8 * truth[1:].norm(), "the gradient is smaller, silently"


def test_without_ranks_it_is_the_loss():
    images, texts = torch.randn(2, 8, 4)
    assert torch.equal(across_ranks(InfoNCE())(images, texts), InfoNCE().from_embeddings(images, texts))


@pytest.mark.parametrize("loss", [NCR(), AOQ(), TripletSelHN(reduction="none")])
def test_what_it_cannot_be(loss):
    with pytest.raises(SelhnError):
        across_ranks(loss)
