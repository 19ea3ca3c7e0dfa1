import pytest
import torch
from torch import nn

from selhn.ops.gru import packed_gru, packed_order


@pytest.mark.parametrize("lengths", [[4], [2, 5, 1, 5], [3, 3, 3], [0, 2], [0, 0]])
@pytest.mark.parametrize("wants_input", [False, True])
def test_states_and_gradients_are_those_of_each_sequence_alone(lengths, wants_input):
    torch.manual_seed(0)
    gru = nn.GRU(3, 4, batch_first=True).double()
    sequences = torch.randn(len(lengths), 5, 3, dtype=torch.float64, requires_grad=wants_input)
    upstream = torch.randn(len(lengths), 5, 4, dtype=torch.float64)
    rows, _, rows_of_step = packed_order(torch.tensor(lengths), 5)
    states = packed_gru(gru, sequences.flatten(0, 1)[rows], rows_of_step)
    alone = [
        gru(sequence[None, :length])[0][0]
        for sequence, length in zip(sequences, lengths, strict=True)
        if length
    ]
    expected = torch.zeros(len(lengths), 5, 4, dtype=torch.float64)
    for item, some in zip([i for i, length in enumerate(lengths) if length], alone, strict=True):
        expected[item, : len(some)] = some
    torch.testing.assert_close(states, expected.flatten(0, 1)[rows], rtol=0, atol=1e-14)
    if not rows.numel():
        return
    asked = [*gru.parameters(), *([sequences] if wants_input else [])]
    mine = torch.autograd.grad((states * upstream.flatten(0, 1)[rows]).sum(), asked)
    theirs = torch.autograd.grad((expected * upstream).sum(), asked)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
