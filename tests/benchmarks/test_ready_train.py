"""What of the ready model's training decides what is shipped: its packing, and texts cut as people ask."""

import torch
from model_cases import make_model
from ready_train import shipped, single_words, spans

from selhn.pictures.ready import WORD_VECTORS, adapted


def test_packed_and_unpacked():
    published = make_model("rvsepp").state_dict()
    torch.manual_seed(1)
    state = {}
    for name, weight in published.items():
        moved = weight.is_floating_point() and not name.startswith(WORD_VECTORS)
        state[name] = weight + 0.1 * torch.randn_like(weight) if moved else weight
    packed = shipped(state, published, rank=10_000)
    found = adapted(packed, published)
    assert found.keys() == {name for name in state if not name.startswith(WORD_VECTORS)}
    for name, weight in found.items():
        assert torch.allclose(weight.double(), state[name].double(), atol=3e-3, rtol=2e-3), name
    matrices = [name for name in packed if name.endswith(".left")]
    assert matrices
    assert all(packed[name].dtype == torch.int8 for name in matrices)
    assert all(len(shipped(state, published, rank=2)[name]) == 2 for name in matrices)


def texts():
    """Tokens that say their place, the first and the last of a text being 101 and 102."""
    lengths = torch.tensor([12, 7, 5, 3])
    place = torch.arange(12).expand(4, 12)
    tokens = torch.where(place == 0, 101, torch.where(place == lengths[:, None] - 1, 102, place))
    return tokens, place < lengths[:, None]


def test_spans_are_words_in_a_row():
    tokens, mask = texts()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        cut, kept = spans(tokens, mask, 1.0, generator)
        for row, real, length in zip(cut, kept, mask.sum(1)):
            first, *inner, last = row[real].tolist()
            assert (first, last) == (101, 102)
            assert inner == list(range(inner[0], inner[0] + len(inner)))
            assert len(inner) <= min(8, int(length) - 2)
            assert inner[-1] < length - 1
    assert all(map(torch.equal, spans(tokens, mask, 0.0, generator), (tokens, mask)))


def test_single_words_are_those_that_tell():
    tokens, mask = texts()
    tells = torch.zeros(200, dtype=torch.bool)
    tells[[2, 3, 8]] = True
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(100):
        cut, kept = single_words(tokens, mask, tells, 1.0, generator)
        first, *inner, last = cut[0][kept[0]].tolist()
        assert (first, last) == (101, 102)
        seen.add(tuple(inner))
        assert torch.equal(cut[3][kept[3]], tokens[3][mask[3]]), "too short to be cut"
    assert seen == {(2,), (3,), (8,), (2, 3), (2, 8), (3, 8)}
    assert all(map(torch.equal, single_words(tokens, mask, tells, 0.0, generator), (tokens, mask)))
