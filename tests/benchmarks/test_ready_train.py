"""What of the ready model's training decides what is shipped: its packing, and texts cut as people ask."""

import torch
from model_cases import make_model
from ready_train import shipped

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
