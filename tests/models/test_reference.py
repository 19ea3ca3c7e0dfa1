"""The fast forms of cross-attention give what the equations give, pair by pair, and so do their gradients."""

import copy

import pytest
import torch
from model_cases import FIXED_REGIONS, make_batch, make_model, without_dropout
from model_oracle import attend, fragments, length_one
from pair_oracle import attended, scores_of

from selhn.models import MODELS
from selhn.models.matcher import taken_side

CROSS_ATTENTION = [name for name, entry in MODELS.items() if entry.family == "cross-attention"]


def full_batch(name, pairs=4):
    """Images of sgr and saf have all five regions."""
    batch = make_batch(pairs, dtype=torch.float64)
    if name in FIXED_REGIONS:
        batch.region_mask.fill_(True)
    return batch


def one_by_one(model, batch):
    """The side inputs of each image and text, without padding."""
    side = {name: list(values) for name, values in taken_side(model, batch.side).items()}
    for name in {"boxes", "adjacency"} & set(side):
        side[name] = [own[mask] for own, mask in zip(side[name], batch.region_mask)]
    return side


@pytest.mark.parametrize("name", CROSS_ATTENTION)
@pytest.mark.parametrize("training", [False, True])
def test_scores_and_gradients_are_those_of_the_equations(name, training):
    settings = without_dropout(name)
    model, batch = make_model(name, **settings).double().train(training), full_batch(name)
    by_pair = copy.deepcopy(model)
    naive = scores_of(by_pair, *fragments(by_pair, batch), one_by_one(by_pair, batch))
    scores = model(batch).scores
    torch.testing.assert_close(scores, naive, rtol=0, atol=1e-10)
    weights = torch.randn(4, 4, dtype=torch.float64)
    (scores * weights).sum().backward()
    (naive * weights).sum().backward()
    for (key, mine), theirs in zip(model.named_parameters(), by_pair.parameters(), strict=True):
        if mine.requires_grad:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-9, msg=key)
    for (key, mine), theirs in zip(model.named_buffers(), by_pair.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12, msg=key)


def test_a_region_of_cmcan_has_no_more_neighbours_than_it_may():
    model, batch = (
        make_model("cmcan", neighbours=2, **without_dropout("cmcan")).double().eval(),
        full_batch("cmcan"),
    )
    batch.side["adjacency"].fill_(True)
    naive = scores_of(model, *fragments(model, batch), one_by_one(model, batch))
    torch.testing.assert_close(model(batch).scores, naive, rtol=0, atol=1e-10)


def test_running_statistics_of_a_batch_in_any_order():
    # The authors' program sorts a batch by length, the longest text first.
    model, batch = make_model("saf", dropout=0.0).double().train(), full_batch("saf", 6)
    lengths = batch.token_mask.sum(1)
    assert len(lengths.unique()) > 1
    assert not torch.equal(lengths, lengths.sort(descending=True).values)
    by_text = copy.deepcopy(model)
    with torch.no_grad():
        scores_of(by_text, *fragments(by_text, batch))
        model(batch)
    ours, theirs = model.head.reasoning.norm, by_text.head.reasoning.norm
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-12, atol=1e-12)
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 6


@pytest.mark.parametrize("focus", [None, "equal", "prob"])
def test_what_a_fragment_sees_one_number_at_a_time(focus):
    torch.manual_seed(0)
    contexts, queries = ([length_one(x) for x in torch.randn(n, 8, dtype=torch.float64)] for n in (5, 4))
    ours = attended(torch.stack(contexts), torch.stack(queries), 9.0, focus)
    torch.testing.assert_close(ours, torch.stack(attend(queries, contexts, 9.0, focus)), rtol=0, atol=1e-12)
