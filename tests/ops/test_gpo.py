import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_oracle import pool

from selhn.ops import GPO


def make_gpo(seed=0):
    torch.manual_seed(seed)
    return GPO().double()


def make_sets(lengths, size, width=3):
    torch.manual_seed(len(lengths))
    mask = torch.arange(size) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), size, width, dtype=torch.float64), mask


@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.integers(0, 2))
def test_equals_a_loop_over_positions_and_channels(lengths, extra):
    # More sets than positions, and fewer: the weights are then made for all lengths, or for those that occur.
    gpo = make_gpo()
    features, mask = make_sets(lengths, max(lengths) + extra)
    pooled = gpo(features, mask)
    for row, feature, valid in zip(pooled, features, mask, strict=True):
        torch.testing.assert_close(row, pool(gpo, list(feature[valid])), rtol=1e-6, atol=1e-6)


@given(st.permutations(range(5)), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_set_has_no_order_and_the_mask_may_have_holes(order, kept):
    gpo, (features, _) = make_gpo(), make_sets([5, 5], 5)
    mask = torch.tensor([kept, kept])
    shuffled = gpo(features[:, order], mask[:, order])
    torch.testing.assert_close(shuffled, gpo(features, mask))
    if any(kept):
        torch.testing.assert_close(shuffled, gpo(features[:, mask[0]], mask[:, mask[0]]))


def test_weights_add_up_to_one_and_padding_has_none():
    gpo, lengths = make_gpo(), torch.tensor([1, 3, 7, 2])
    weights = gpo.weights(lengths, 7)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))
    assert (weights == 0).tolist() == [[k >= length for k in range(7)] for length in lengths]


def test_weights_depend_on_the_length_only():
    gpo = make_gpo()
    alone = [gpo.weights(torch.tensor([length]), 5)[0] for length in (2, 5, 2, 4, 1, 3, 3)]
    torch.testing.assert_close(gpo.weights(torch.tensor([2, 5, 2, 4, 1, 3, 3]), 5), torch.stack(alone))


def test_an_empty_set_is_pooled_to_zeros():
    gpo, (features, mask) = make_gpo(), make_sets([3, 0], 3)
    features.requires_grad_()
    pooled = gpo(features, mask)
    pooled.sum().backward()
    assert not pooled[1].any()
    assert features.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in gpo.parameters())


def test_between_the_maximum_and_the_minimum():
    gpo, (features, mask) = make_gpo(), make_sets([4, 4, 4], 4)
    pooled = gpo(features, mask)
    assert (pooled <= features.max(1).values).all()
    assert (pooled >= features.min(1).values).all()


def test_weights_are_not_rounded_by_autocast():
    gpo, lengths = GPO(), torch.tensor([3, 5])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = gpo.weights(lengths, 5)
    assert torch.equal(rounded, gpo.weights(lengths, 5))


def test_published_names():
    assert set(dict(GPO().named_parameters())) == {
        *(
            f"gru.{way}.{kind}_{gate}_l0"
            for way in ("ahead", "back")
            for kind in ("weight", "bias")
            for gate in ("ih", "hh")
        ),
        "linear.weight",
    }


def test_scoring_first_and_training_later():
    features, mask = make_sets([3, 41], 41)
    with torch.inference_mode():
        make_gpo()(features, mask)
    gpo = make_gpo(seed=1)
    gpo(features, mask).sum().backward()
    assert gpo.linear.weight.grad.abs().sum() > 0


@pytest.mark.gpu
def test_what_a_recording_reads_is_not_freed_by_other_sizes():
    gpo = GPO().cuda()
    mask = torch.ones(4, 9, dtype=torch.bool, device="cuda")
    features = torch.randn(4, 9, 64, device="cuda")
    recording = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        expected = [gpo(features, mask) for _ in range(2)][-1]
        with torch.cuda.graph(recording, stream=stream):
            pooled = gpo(features, mask)
        for size in range(10, 110):
            gpo.weights(torch.tensor([1], device="cuda"), size)
        # Whatever was freed is in use again, and no longer what it was.
        others = [
            torch.full((128 * blocks,), torch.nan, device="cuda")
            for blocks in range(1, 9)
            for _ in range(2000)
        ]
        recording.replay()
    torch.cuda.synchronize()
    assert torch.allclose(pooled, expected), len(others)
