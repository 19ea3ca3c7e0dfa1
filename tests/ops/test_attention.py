import pytest
import torch
from model_oracle import attend, cosines

from selhn.ops import Fragments, Pairing, attended_cosines, attention, unit, unit_attention
from selhn.ops.attention import attention_weights

FOCUSES = [None, "equal", "prob"]


def make(items, size, seed=0, dim=8, spread=1.0, dtype=torch.float64):
    """Items with 1 to `size` fragments, the first with all."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, size + 1, (items,), generator=generator)
    lengths[0] = size
    vectors = spread * torch.randn(items, size, dim, generator=generator, dtype=dtype) + 0.3
    return vectors.requires_grad_(), torch.arange(size) < lengths[:, None]


def fragments(vectors, mask):
    return Fragments.of(unit(vectors), mask)


def rows(fragments, item):
    return list(fragments.vectors[item][fragments.mask[item]])


def paired(contexts, queries):
    """All fragments are real."""
    return Pairing(*(Fragments(side, torch.ones_like(side[..., 0]).bool()) for side in (contexts, queries)))


@pytest.fixture
def pair():
    contexts, queries = make(3, 5, seed=1), make(4, 6, seed=2)
    return contexts, queries


def test_products_are_dot_products():
    contexts, queries = torch.randn(2, 3, 8), torch.randn(4, 5, 8)
    expected = torch.einsum("ckd,qld->cklq", contexts, queries)
    torch.testing.assert_close(paired(contexts, queries).products(), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert paired(contexts, queries).products().dtype == torch.float32


@pytest.mark.gpu
def test_products_without_a_gradient_are_as_exact():
    contexts, queries = (
        unit(torch.randn(items, size, 1024, device="cuda")) for items, size in ((3, 36), (5, 23))
    )
    with torch.no_grad():
        ours = paired(contexts, queries).products()
        expected = paired(contexts.double(), queries.double()).products()
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-6)


def test_turned_products_are_those_of_the_other_direction():
    contexts, queries = torch.randn(2, 3, 8, requires_grad=True), torch.randn(4, 5, 8, requires_grad=True)
    ours = paired(contexts, queries).with_products().turned().products()
    expected = paired(queries, contexts).products()
    torch.testing.assert_close(ours, expected)
    weights = torch.randn(ours.shape)
    mine = torch.autograd.grad((ours * weights).sum(), [contexts, queries])
    theirs = torch.autograd.grad((expected * weights).sum(), [contexts, queries])
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("focus", FOCUSES)
@pytest.mark.parametrize("chunk", [1, 2**20])
def test_equals_a_loop_over_pairs_and_fragments(pair, focus, chunk, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK_BYTES", chunk)
    (context_vectors, context_mask), (query_vectors, query_mask) = pair
    contexts, queries = fragments(context_vectors, context_mask), fragments(query_vectors, query_mask)
    ours = attended_cosines(Pairing(contexts, queries), 7.0, focus)
    weights = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(0))
    total = 0
    for c in range(3):
        for q in range(4):
            # One context fragment has no average to be above of; the formula divides by zero there.
            loop_focus = focus if context_mask[c].sum() > 1 else None
            naive = torch.stack(cosines(rows(queries, q), rows(contexts, c), 7.0, loop_focus))
            torch.testing.assert_close(ours[c, : len(naive), q], naive, rtol=0, atol=1e-12)
            assert not ours[c, len(naive) :, q].any(), "padding"
            total = total + (naive * weights[c, : len(naive), q]).sum()
    expected = torch.autograd.grad(total, [context_vectors, query_vectors], retain_graph=True)
    got = torch.autograd.grad(
        (ours * weights).masked_fill(~query_mask.T, 0).sum(), [context_vectors, query_vectors]
    )
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_unit_attention_equals_a_loop(pair):
    contexts, queries = fragments(*pair[0]), fragments(*pair[1])
    weights = unit_attention(Pairing(contexts, queries), 9.0)
    attended = weights @ contexts.vectors[:, None]
    for c in range(3):
        assert not weights[c, :, :, ~contexts.mask[c]].any()
        for q in range(4):
            naive = [x / x.norm() for x in attend(rows(queries, q), rows(contexts, c), 9.0)]
            torch.testing.assert_close(attended[c, q, : len(naive)], torch.stack(naive), rtol=0, atol=1e-7)


@pytest.mark.parametrize("focus", FOCUSES)
def test_each_query_with_its_own_context(focus):
    contexts, queries = fragments(*make(4, 5, seed=1)), fragments(*make(4, 6, seed=2))
    own, own_pairs = torch.arange(4), Pairing(contexts, queries, aligned=True)
    among = attended_cosines(Pairing(contexts, queries), 7.0, focus)[own, :, own]
    torch.testing.assert_close(attended_cosines(own_pairs, 7.0, focus)[0].T, among)
    weights = unit_attention(Pairing(contexts, queries), 7.0)[own, own]
    torch.testing.assert_close(unit_attention(own_pairs, 7.0)[:, 0], weights)
    dots = Pairing(contexts, queries).products()[own, :, :, own]
    torch.testing.assert_close(own_pairs.products()[..., 0], dots)


def test_gradients_agree_with_differences(pair):
    (context_vectors, context_mask), (query_vectors, query_mask) = pair

    def cosine(contexts, queries):
        return attended_cosines(
            Pairing(fragments(contexts, context_mask), fragments(queries, query_mask)), 4.0
        )

    def weights(contexts, queries):
        return unit_attention(Pairing(fragments(contexts, context_mask), fragments(queries, query_mask)), 4.0)

    assert torch.autograd.gradcheck(cosine, (context_vectors, query_vectors))
    assert torch.autograd.gradcheck(weights, (context_vectors, query_vectors))


@pytest.mark.parametrize("focus", FOCUSES)
def test_nothing_to_see_gives_zero_and_finite_gradients(focus):
    vectors, mask = make(3, 4, dtype=torch.float32)
    nothing = mask.clone()
    nothing[1] = False
    for context_mask, query_mask in ((nothing, mask), (mask, nothing), (nothing, nothing)):
        contexts, queries = fragments(vectors, context_mask), fragments(vectors, query_mask)
        cosine = attended_cosines(Pairing(contexts, queries), 20.0, focus)
        assert not cosine[~context_mask.any(1)].any()
        assert not cosine[:, :, ~query_mask.any(1)].any()
        (grad,) = torch.autograd.grad(cosine.masked_fill(~query_mask.T, 0).sum(), vectors)
        assert grad.isfinite().all()


@pytest.mark.parametrize("focus", ["equal", "prob"])
def test_equal_weights_are_all_kept(focus):
    one = torch.tensor([0.6, 0.8, 0.0])
    same = Fragments.of(one.expand(1, 7, 3), torch.ones(1, 7, dtype=torch.bool))
    alone = Fragments.of(one.expand(1, 1, 3), torch.ones(1, 1, dtype=torch.bool))
    query = Fragments.of(
        unit(torch.tensor([[[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]])), torch.ones(1, 2, dtype=torch.bool)
    )
    expected = (query.vectors[0] @ one)[None, :, None]
    for contexts in (same, alone):
        torch.testing.assert_close(attended_cosines(Pairing(contexts, query), 20.0, focus), expected)


def test_a_focus_looks_away_from_what_is_below_the_average():
    contexts = Fragments.of(torch.eye(3)[None], torch.ones(1, 3, dtype=torch.bool))
    two = Fragments.of(
        unit(torch.tensor([[[3.0, 2.9, 0.1], [0.1, 0.1, 3.0]]])), torch.ones(1, 2, dtype=torch.bool)
    )
    seen = attended_cosines(Pairing(contexts, two), 5.0, "equal")[0, 1, 0]
    torch.testing.assert_close(seen, two.vectors[0, 1, 2], msg="the second word sees the third region alone")


@pytest.mark.parametrize("smooth", [0.1, 20.0, 500.0])
def test_any_smoothness_is_finite_in_float32(smooth):
    vectors, mask = make(3, 6, dtype=torch.float32)
    some = fragments(vectors, mask)
    cosine = attended_cosines(Pairing(some, some), smooth)
    (grad,) = torch.autograd.grad(cosine.masked_fill(~mask.T, 0).sum(), vectors)
    assert cosine.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("focus", FOCUSES)
def test_the_weights_are_those_that_attention_looks_with(pair, focus):
    contexts, queries = fragments(*pair[0]), fragments(*pair[1])
    weights = attention_weights(Pairing(contexts, queries), 7.0, focus)
    torch.testing.assert_close(weights.sum(1), torch.ones_like(weights[:, 0]))
    assert not weights.permute(0, 1, 3, 2)[~contexts.mask].any()
    attended = torch.einsum("cklq,ckd->cqld", weights, contexts.vectors)
    cosines = torch.cosine_similarity(attended, queries.vectors[None], dim=3).permute(0, 2, 1)
    ours = attended_cosines(Pairing(contexts, queries), 7.0, focus)
    here = queries.mask.T.expand_as(ours)
    torch.testing.assert_close(ours[here], cosines[here])
