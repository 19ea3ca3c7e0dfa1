import pytest
import torch

from selhn.ops import Fragments, Pairing, attended_cosines, fragment_mean


def make(items, size, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, size + 1, (items,), generator=generator)
    vectors = torch.randn(items, size, 8, generator=generator, dtype=torch.float64)
    return Fragments.of(vectors, torch.arange(size) < lengths[:, None])


def mean_cosine(way, side):
    return fragment_mean(attended_cosines(side, 7.0 if way == "t2i" else 3.0), side.queries.mask)


def in_directions(*directions):
    return lambda pairing: pairing.summed(directions, mean_cosine)


@pytest.mark.parametrize("directions", [("t2i",), ("i2t",), ("t2i", "i2t"), ("i2t", "t2i")])
def test_own_pairs_score_as_among_all(directions):
    images, texts, score = make(5, 6, 1), make(5, 4, 2), in_directions(*directions)
    among = Pairing(images, texts).scored(score, products=1)
    alone = Pairing(images, texts, aligned=True).scored(score, products=1)
    assert among.shape == (5, 5)
    torch.testing.assert_close(alone, among.diagonal())


def test_both_directions_are_summed():
    pairing = Pairing(make(3, 6, 1), make(4, 5, 2))
    each = [in_directions(way)(pairing) for way in ("t2i", "i2t")]
    torch.testing.assert_close(in_directions("t2i", "i2t")(pairing), each[0] + each[1])


@pytest.mark.parametrize("aligned", [False, True])
def test_parts_are_some_contexts_with_their_queries(aligned):
    pairing = Pairing(make(5, 6, 1), make(5, 4, 2), aligned).with_products()
    parts = pairing.parts(bytes_each=1, chunk_bytes=2)
    assert [len(part.contexts) for part in parts] == [2, 2, 1]
    assert [len(part.queries) for part in parts] == ([2, 2, 1] if aligned else [5, 5, 5])
    for part in parts:
        alone = Pairing(part.contexts, part.queries, aligned).products()
        torch.testing.assert_close(part.products(), alone)


@pytest.mark.parametrize("aligned", [False, True])
def test_axes_meet(aligned):
    pairing = Pairing(make(3, 6, 1), make(3 if aligned else 4, 5, 2), aligned)
    pairs = torch.randn(3, 1 if aligned else 4, 2)
    assert torch.broadcast_shapes(pairing.of_queries(pairing.queries.mask).shape[:2], pairs.shape[:2])
    by_query = pairing.by_query(pairs)
    assert by_query.shape == ((1, 3, 2) if aligned else (3, 4, 2))
    assert torch.broadcast_shapes(pairing.of_contexts(pairing.contexts.mask).shape[:2], by_query.shape[:2])
    turned = pairing.turned()
    assert torch.equal(turned.exchanged(pairing.exchanged(by_query)), by_query)
    torch.testing.assert_close(pairing.with_products().turned().products(), turned.products())


def test_attention_is_shown_by_name():
    pairing = Pairing(make(1, 6, 1), make(1, 4, 2))
    shown = pairing.shown(("t2i", "i2t"), lambda _, side: side.products())
    assert shown["of_words"].shape == shown["of_regions"].shape == (4, 6)
    torch.testing.assert_close(shown["of_words"], shown["of_regions"])
