import torch
from loss_cases import make_scores

from selhn.losses import Triplet, TripletHN, TripletWarmUp


def test_all_negatives_first_then_the_hardest():
    scores, loss_fn = make_scores("spread", 9, 0), TripletWarmUp(warmup_epochs=2)
    for epoch, expected in enumerate([Triplet(), Triplet(), TripletHN(), TripletHN()]):
        loss_fn.set_epoch(epoch)
        assert torch.equal(loss_fn(scores), expected(scores))


def test_no_warm_up_is_hardest_negative_mining():
    scores = make_scores("spread", 9, 0)
    assert torch.equal(TripletWarmUp(warmup_epochs=0)(scores), TripletHN()(scores))
