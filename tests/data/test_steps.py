import threading

import pytest
import torch

from selhn.data import Pairs, PlannedStep
from selhn.data.steps import copying_stream, in_background, prefetched


def test_each_leaves_out_what_is_not_there():
    pairs = Pairs(torch.arange(2), torch.arange(2))
    doubled = pairs.each(lambda tensor: tensor * 2)
    assert doubled.texts.tolist() == [0, 2]
    assert doubled.regions is None


def test_items_come_in_order_from_a_thread_that_runs_ahead():
    here, seen = threading.get_ident(), []

    def items():
        for number in range(10):
            seen.append(threading.get_ident())
            yield number

    assert list(in_background(items(), depth=2)) == list(range(10))
    assert here not in seen


def test_what_the_thread_raises_is_raised_here():
    def items():
        yield 1
        raise ValueError("row 7 holds NaN")

    got = in_background(items())
    assert next(got) == 1
    with pytest.raises(ValueError, match="row 7 holds NaN"):
        next(got)


def test_leaving_early_stops_the_thread():
    before = threading.active_count()
    got = in_background(iter(range(1000)), depth=1)
    next(got)
    got.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_steps_arrive_as_they_left(device):
    def steps():
        for seed in range(5):
            regions = torch.full((2, 3, 4), float(seed))
            yield PlannedStep(Pairs(torch.arange(2), torch.arange(2), regions, torch.ones(2, 3) > 0), 9, seed)

    for step in prefetched(steps(), torch.device(device)):
        assert step.pairs.regions.device.type == device
        assert (step.pairs.regions == step.seed).all()
        assert step.pairs.texts.tolist() == [0, 1]


@pytest.mark.gpu
def test_copies_have_a_stream_that_nothing_else_is_given():
    device = torch.device("cuda", 0)
    others = {torch.cuda.Stream(device).cuda_stream for _ in range(100)}
    assert len(others) < 100  # they come round again
    assert copying_stream(device).cuda_stream not in others
    assert copying_stream(device) == copying_stream(device)
