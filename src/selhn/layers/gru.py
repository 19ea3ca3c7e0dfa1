"""Recurrent encoders of padded sequences; on a GPU nothing is packed and nothing waits for the host."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.kernels import can_scan, gru_scan
from selhn.layers.fragments import is_ragged
from selhn.layers.packed_gru import packed_gru, packed_order


class BiGRU(nn.Module):
    """A GRU from both ends; the two states of a position are averaged.

    h_n = (GRU_ahead(x_1 .. x_n) + GRU_back(x_L .. x_n)) / 2

    Equal to a packed bidirectional `nn.GRU`, but made of two plain ones, the second of which reads every
    sequence reversed by its own length. Sequences are padded at their end; padded positions come out as 0.
    """

    def __init__(self, input_dim: int, hidden_dim: int):
        super().__init__()
        self.ahead = nn.GRU(input_dim, hidden_dim, batch_first=True)
        self.back = nn.GRU(input_dim, hidden_dim, batch_first=True)

    def forward(self, sequences: Float[Tensor, "B N e"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N h"]:
        if is_ragged(sequences):
            return self._without_padding(sequences, mask.sum(1))
        mirror = mirror_positions(mask.sum(1), mask.shape[1])[:, :, None]
        mirrored = sequences.gather(1, mirror.expand_as(sequences))
        if can_scan(sequences):
            both = torch.stack([sequences.transpose(0, 1), mirrored.transpose(0, 1)])
            ahead, back = gru_scan(both, (self.ahead, self.back)).transpose(1, 2)
        else:
            ahead, back = self.ahead(sequences)[0], self.back(mirrored)[0]
        back = back.gather(1, mirror.expand_as(back))
        return ((ahead + back) / 2).masked_fill(~mask[:, :, None], 0)

    def _without_padding(self, sequences: Float[Tensor, "B N e"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B N h"]:
        """The same with shapes that depend on the lengths, which a CPU is free to have."""
        rows, mirrored, rows_of_step = packed_order(lengths, sequences.shape[1])
        flat = sequences.flatten(0, 1)
        ahead, back = (
            packed_gru(gru, flat.index_select(0, places), rows_of_step)
            for gru, places in ((self.ahead, rows), (self.back, mirrored))
        )
        states = ahead.new_zeros(len(flat), ahead.shape[1]).index_add(0, rows, ahead).index_add(0, mirrored, back)
        return (states / 2).unflatten(0, sequences.shape[:2])


class WordGRU(nn.Module):
    """Word embeddings, dropout on them, and a `BiGRU` over them."""

    def __init__(self, vocab_size: int, word_dim: int, hidden_dim: int, dropout: float = 0.0):
        super().__init__()
        self.embed = word_embedding(vocab_size, word_dim)
        self.dropout = nn.Dropout(dropout)
        self.rnn = BiGRU(word_dim, hidden_dim)

    def forward(self, tokens: Int[Tensor, "T N"], mask: Bool[Tensor, "T N"]) -> Float[Tensor, "T N h"]:
        return self.rnn(self.dropout(look_up(self.embed, tokens)), mask)


def look_up(table: nn.Embedding, tokens: Int[Tensor, "T N"]) -> Float[Tensor, "T N e"]:
    """The vectors of some words; a padding word of the table has no gradient."""
    if not tokens.is_cuda:
        return table(tokens)
    # The gradient of an embedding walks over all tokens for every word; that of a selection adds each up once.
    words = table.weight.index_select(0, tokens.flatten()).unflatten(0, tokens.shape)
    if table.padding_idx is None:
        return words
    return torch.where((tokens == table.padding_idx)[..., None], words.detach(), words)


def word_embedding(vocab_size: int, word_dim: int) -> nn.Embedding:
    """A table of word vectors, uniform in [-0.1, 0.1] as in VSE++ and all that followed."""
    table = nn.Embedding(vocab_size, word_dim)
    nn.init.uniform_(table.weight, -0.1, 0.1)
    return table


def mirror_positions(lengths: Int[Tensor, " B"], size: int) -> Int[Tensor, "B N"]:
    """Indices that reverse the first `length` of `size` positions and leave the padding; their own inverse."""
    position = torch.arange(size, device=lengths.device)
    mirrored = lengths[:, None] - 1 - position
    return torch.where(mirrored >= 0, mirrored, position)


def last_states(states: Float[Tensor, "B N h"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B h"]:
    """The state at the last valid position of every sequence; zeros if there is none."""
    lengths = mask.sum(1)
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, index).squeeze(1).masked_fill(lengths[:, None] == 0, 0)
