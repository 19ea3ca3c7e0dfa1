"""Recurrent encoders of padded sequences; on a GPU nothing is packed and nothing waits for the host.

On a CPU no step is computed for padding: sequences are sorted by length, the longest first, and stored step
after step. The rows of step n belong to the sequences that have one, and continue the first of step n - 1.
Work that does not depend on the previous step is one matrix product over all rows, in the backward pass too,
where torch would add up a gradient of the weights for every step.

In half precision on a GPU a step of both directions is one kernel, which also finds where the second one,
that reads from the end, has its input; states and sums are float32, products bfloat16. The steps of a GRU are
small and wait for each other, and cuDNN takes the two directions of a text one after the other, and in
float16, where small gradients vanish.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.ops.fragments import is_ragged
from selhn.ops.gpu import fusable


class BiGRU(nn.Module):
    """A bidirectional GRU; the two states of a position are averaged.

    h_n = (GRU_ahead(x_1 .. x_n) + GRU_back(x_L .. x_n)) / 2

    Equal to a packed bidirectional `nn.GRU`, but made of two plain ones; the second reads every
    sequence reversed by its own length. Sequences are padded at their end; padded positions come out as 0.
    """

    def __init__(self, input_dim: int, hidden_dim: int):
        super().__init__()
        self.ahead = nn.GRU(input_dim, hidden_dim, batch_first=True)
        self.back = nn.GRU(input_dim, hidden_dim, batch_first=True)

    def forward(self, sequences: Float[Tensor, "B N e"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N h"]:
        if is_ragged(sequences):
            return self._without_padding(sequences, mask.sum(1))
        if can_scan(sequences):
            return gru_scan(sequences, mask.sum(1), self.ahead, self.back)
        mirror = mirror_positions(mask.sum(1), mask.shape[1])[:, :, None]
        ahead, back = self.ahead(sequences)[0], self.back(sequences.gather(1, mirror.expand_as(sequences)))[0]
        back = back.gather(1, mirror.expand_as(back))
        return ((ahead + back) / 2).masked_fill(~mask[:, :, None], 0)

    def _without_padding(
        self, sequences: Float[Tensor, "B N e"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B N h"]:
        """The same with shapes that depend on the lengths, which is fine on a CPU."""
        rows, mirrored, rows_of_step = packed_order(lengths, sequences.shape[1])
        flat = sequences.flatten(0, 1)
        ahead, back = (
            packed_gru(gru, flat.index_select(0, places), rows_of_step)
            for gru, places in ((self.ahead, rows), (self.back, mirrored))
        )
        states = (
            ahead.new_zeros(len(flat), ahead.shape[1]).index_add(0, rows, ahead).index_add(0, mirrored, back)
        )
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
    # The gradient of an embedding visits all tokens for each word; that of indexing adds each up once.
    words = table.weight.index_select(0, tokens.flatten()).unflatten(0, tokens.shape)
    if table.padding_idx is None:
        return words
    return torch.where((tokens == table.padding_idx)[..., None], words.detach(), words)


def word_embedding(vocab_size: int, word_dim: int) -> nn.Embedding:
    """A table of word vectors, uniform in [-0.1, 0.1] as in VSE++ and its successors."""
    table = nn.Embedding(vocab_size, word_dim)
    nn.init.uniform_(table.weight, -0.1, 0.1)
    return table


def mirror_positions(lengths: Int[Tensor, " B"], size: int) -> Int[Tensor, "B N"]:
    """Indices that reverse the first `length` of `size` positions but not the padding; self-inverse."""
    position = torch.arange(size, device=lengths.device)
    mirrored = lengths[:, None] - 1 - position
    return torch.where(mirrored >= 0, mirrored, position)


def last_states(states: Float[Tensor, "B N h"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B h"]:
    """The state at the last valid position of every sequence; zeros if there is none."""
    lengths = mask.sum(1)
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, index).squeeze(1).masked_fill(lengths[:, None] == 0, 0)


def can_scan(sequences: Float[Tensor, "*K e"]) -> bool:
    """Whether `gru_scan` should be used: on a GPU, in half precision."""
    return fusable(sequences) and torch.is_autocast_enabled("cuda")


def gru_scan(
    sequences: Float[Tensor, "B N e"], lengths: Int[Tensor, " B"], ahead: nn.GRU, back: nn.GRU
) -> Float[Tensor, "B N h"]:
    """The mean of the states of two one-layer GRUs at every position, 0 in the padding.

    r, z = sigmoid(W_r x + b_r + U_r h + c_r), sigmoid(W_z x + b_z + U_z h + c_z)
    n = tanh(W_n x + b_n + r * (U_n h + c_n)),   h <- (1 - z) n + z h,   beginning with h = 0

    One reads the first `length` positions of a sequence ahead, the other back.
    """
    from selhn.kernels.recurrent import FusedScan

    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [getattr(gru, name) for name in names for gru in (ahead, back)]
    with torch.autocast("cuda", enabled=False):
        return FusedScan.apply(sequences, lengths, *weights)


def packed_order(
    lengths: Int[Tensor, " B"], size: int
) -> tuple[Int[Tensor, " W"], Int[Tensor, " W"], list[int]]:
    """Positions of W rows in padded sequences (B * size), read ahead and back, and how many each step has."""
    order = lengths.argsort(descending=True, stable=True)
    present = torch.arange(size)[:, None] < lengths[order]
    step, place = present.nonzero(as_tuple=True)
    item = order[place]
    return item * size + step, item * size + lengths[item] - 1 - step, present.sum(1).tolist()


def packed_gru(gru: nn.GRU, rows: Float[Tensor, "W e"], rows_of_step: list[int]) -> Float[Tensor, "W h"]:
    """The states of one layer of `gru`, starting from zeros; `gru_scan` has the equations."""
    steps, first, before = [], 0, 0
    for count in rows_of_step:  # its rows, and the rows of the step before that they continue
        steps.append((slice(first, first + count), slice(before, before + count)))
        first, before = first + count, first
    weights = (gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0)
    return _PackedScan.apply(rows, *weights, steps)


class _PackedScan(torch.autograd.Function):
    """(rows, W, U, b, c) -> states. Gates are kept after their sigmoid or tanh, in the order r, z, n."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor, steps: list[tuple[slice, slice]]
    ) -> Tensor:
        hidden = u.shape[1]
        # What is added before the sigmoids can be added to the input's part once for all steps.
        gates = torch.addmm(torch.cat([b[: 2 * hidden] + c[: 2 * hidden], b[2 * hidden :]]), rows, w.T)
        states, recalled = gates.new_empty(len(rows), hidden), gates.new_empty(len(rows), hidden)
        for number, (now, before) in enumerate(steps):
            both, new = gates[now, : 2 * hidden], gates[now, 2 * hidden :]
            if number:
                from_state = states[before] @ u.T
                both += from_state[:, : 2 * hidden]
                torch.add(from_state[:, 2 * hidden :], c[2 * hidden :], out=recalled[now])
            else:
                recalled[now] = c[2 * hidden :]
            reset, update = both.sigmoid_().chunk(2, 1)
            new.addcmul_(reset, recalled[now]).tanh_()
            previous = states[before] if number else torch.zeros_like(new)
            torch.lerp(new, previous, update, out=states[now])
        ctx.save_for_backward(rows, w, u, gates, states, recalled)
        ctx.steps = steps
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, w, u, gates, states, recalled = ctx.saved_tensors
        hidden = u.shape[1]
        # Before the sigmoids and the tanh: of the input's part, and of the state's.
        grad_input, grad_recalled = torch.empty_like(gates), torch.empty_like(gates)
        previous, carried = torch.zeros_like(states), None
        # This layout makes the product below a third faster.
        u = u.T.contiguous().T
        for number, (now, before) in reversed(list(enumerate(ctx.steps))):
            reset, update, new = gates[now].chunk(3, 1)
            grad_state = grad[now].clone()
            if carried is not None:
                grad_state[: len(carried)] += carried
            if number:
                previous[now] = states[before]
            grad_new = torch.ops.aten.tanh_backward(
                torch.addcmul(grad_state, grad_state, update, value=-1), new
            )
            grad_update = torch.ops.aten.sigmoid_backward((previous[now] - new).mul_(grad_state), update)
            grad_reset = torch.ops.aten.sigmoid_backward(grad_new * recalled[now], reset)
            torch.cat([grad_reset, grad_update, grad_new], 1, out=grad_input[now])
            torch.cat([grad_reset, grad_update, grad_new.mul_(reset)], 1, out=grad_recalled[now])
            if number:
                carried = torch.addmm(grad_state.mul_(update), grad_recalled[now], u)
        grad_b = grad_input.sum(0)
        grad_c = torch.cat([grad_b[: 2 * hidden], grad_recalled[:, 2 * hidden :].sum(0)])
        grad_rows = grad_input @ w if ctx.needs_input_grad[0] else None
        return grad_rows, grad_input.T @ rows, grad_recalled.T @ previous, grad_b, grad_c, None
