import pytest
import torch
from loss_cases import KINDS, make_ids, make_scores

from selhn.diagnose import gradient_norms, probe_scores
from selhn.losses import TripletSelHN


@pytest.mark.filterwarnings("ignore:TripletSelHN got scores")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_ids", [False, True])
def test_separated_is_what_selhn_mines(kind, with_ids):
    scores, ids = make_scores(kind, 9, 0), make_ids(9, 0) if with_ids else None
    numbers = probe_scores(scores, ids)
    mined = TripletSelHN().mined(scores, image_ids=ids)
    assert numbers["separated"] == mined.float().mean()


def test_by_hand():
    scores = torch.tensor([[0.5, 0.6], [0.2, 0.9]])
    numbers = probe_scores(scores)
    assert numbers["delta_s"].item() == pytest.approx((0.1 + 0.7 + 0.3 + 0.3) / 4)
    assert numbers["s_p"].item() == pytest.approx(0.7)
    assert numbers["s_n"].item() == pytest.approx((0.6 + 0.2 + 0.2 + 0.6) / 4)
    assert numbers["spread"].item() == pytest.approx(scores.std(correction=0).item())


def test_collapse_and_no_negatives():
    collapsed = probe_scores(torch.full((5, 5), 0.7))
    assert collapsed["delta_s"] == 0
    assert collapsed["spread"] < 1e-6
    alone = probe_scores(torch.tensor([[0.3]]))
    assert all(value.isfinite() for value in alone.values())
    assert alone["delta_s"] == 0


def test_gradient_norms():
    layer, idle = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    layer(torch.ones(4, 3)).sum().backward()
    norms = gradient_norms({"image": layer, "text": idle})
    expected = torch.cat([p.grad.flatten() for p in layer.parameters()]).norm()
    assert torch.allclose(norms["grad_image"], expected)
    assert norms["grad_text"] == 0
