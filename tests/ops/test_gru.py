import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from selhn.ops import BiGRU, WordGRU, last_states, word_embedding
from selhn.ops.gru import look_up, mirror_positions


def packed_twin(ours):
    """nn.GRU in both directions with the same weights, as the authors use it."""
    twin = nn.GRU(ours.ahead.input_size, ours.ahead.hidden_size, batch_first=True, bidirectional=True)
    reverse = {f"{key}_reverse": value for key, value in ours.back.state_dict().items()}
    twin.load_state_dict({**ours.ahead.state_dict(), **reverse})
    return twin


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 1000))
def test_equals_a_packed_bidirectional_gru(lengths, extra, seed):
    torch.manual_seed(seed)
    ours, size = BiGRU(4, 3), max(lengths) + extra
    sequences = torch.randn(len(lengths), size, 4)
    mask = torch.arange(size) < torch.tensor(lengths)[:, None]
    packed = pack_padded_sequence(sequences, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    theirs, _ = pad_packed_sequence(packed_twin(ours)(packed)[0], batch_first=True, total_length=size)
    torch.testing.assert_close(
        ours(sequences, mask), theirs.unflatten(2, (2, 3)).mean(2), rtol=1e-6, atol=1e-6
    )


def test_gradients_equal_those_of_the_packed_one():
    torch.manual_seed(0)
    ours, lengths = BiGRU(4, 3), torch.tensor([5, 2, 3])
    twin = packed_twin(ours)
    sequences, upstream = torch.randn(3, 5, 4), torch.randn(3, 5, 3)
    ours(sequences, torch.arange(5) < lengths[:, None]).backward(upstream)
    packed = pack_padded_sequence(sequences, lengths, batch_first=True, enforce_sorted=False)
    theirs, _ = pad_packed_sequence(twin(packed)[0], batch_first=True)
    theirs.unflatten(2, (2, 3)).mean(2).backward(upstream)
    for key, parameter in ours.ahead.named_parameters():
        torch.testing.assert_close(parameter.grad, getattr(twin, key).grad)
    for key, parameter in ours.back.named_parameters():
        torch.testing.assert_close(parameter.grad, getattr(twin, f"{key}_reverse").grad)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_mirroring_twice_undoes_it(lengths):
    mirror = mirror_positions(torch.tensor(lengths), 8)
    for row, length in zip(mirror.tolist(), lengths, strict=True):
        assert row == [*range(length - 1, -1, -1), *range(length, 8)]
    assert torch.equal(mirror.gather(1, mirror), torch.arange(8).expand_as(mirror))


def test_last_states():
    states = torch.arange(12.0).view(2, 3, 2)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert last_states(states, mask).tolist() == [[2.0, 3.0], [0.0, 0.0]]


def test_words_are_looked_up():
    words = WordGRU(7, 4, 3)
    tokens, mask = torch.tensor([[1, 2, 0]]), torch.tensor([[True, True, False]])
    expected = words.rnn(words.embed.weight[tokens], mask)
    assert torch.equal(words(tokens, mask), expected)
    assert not words(tokens, mask)[0, 2].any()


@pytest.mark.parametrize("size", [1, 300])
def test_word_vectors_start_small(size):
    assert word_embedding(size, 50).weight.abs().max() <= 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("padding", [None, 0])
def test_words_are_looked_up_on_a_gpu_as_an_embedding_does(padding):
    table = torch.nn.Embedding(50, 8, padding_idx=padding)
    tokens, pulls = torch.randint(50, (6, 9)), torch.randn(6, 9, 8)
    tokens[:, -2:] = 0
    (table(tokens) * pulls).sum().backward()
    expected = table.weight.grad.clone()
    table.weight.grad = None
    (look_up(table.cuda(), tokens.cuda()) * pulls.cuda()).sum().backward()
    torch.testing.assert_close(table.weight.grad.cpu(), expected)
