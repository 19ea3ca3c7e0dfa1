"""A captioner that is trained with a matcher: it predicts the words of the text from the regions.

Venugopalan et al., Sequence to Sequence, Video to Text, ICCV 2015; attention of Bahdanau et al., ICLR 2015:

    e_m = GRU(W x_m)                                                        over the regions
    c_n = sum_m a_nm e_m,  a_n = softmax_m(v . tanh(A e_m + B h_(n-1)))     what word n attends to
    h_n = GRU([w_n, c_n], h_(n-1)),  h_0 = e_M                              w_n is the true word
    loss = - (1 / T) sum over all words of log softmax(O h_n)[the next word]
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from selhn.base.types import at_least_float32
from selhn.ops.fragments import is_ragged, real_or_all
from selhn.ops.gru import last_states, look_up

PAD_ID = 0
"""The target after the last word of a text."""


class Captioner(nn.Module):
    """The loss of the words, summed over each text and averaged over texts."""

    def __init__(self, input_dim: int, dim: int, vocab_size: int, word_dim: int, dropout: float = 0.2):
        super().__init__()
        self.project = nn.Linear(input_dim, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.embed = nn.Embedding(vocab_size, word_dim)
        self.look_at, self.look_from = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.weigh = nn.Linear(dim, 1, bias=False)
        self.cell = nn.GRUCell(word_dim + dim, dim)
        self.out = nn.Linear(dim, vocab_size)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.project, self.out):
            nn.init.xavier_normal_(linear.weight)

    def forward(
        self,
        regions: Float[Tensor, "T M d"],
        region_mask: Bool[Tensor, "T M"],
        tokens: Int[Tensor, "T N"],
        token_mask: Bool[Tensor, "T N"],
    ) -> Float[Tensor, ""]:
        """The real regions and tokens are in front of the padding."""
        states = self._states(regions, region_mask, tokens)
        # Official: the padding after the last word is a target too, so every word has a next one.
        following = pad(tokens.masked_fill(~token_mask, PAD_ID), (0, 1), value=PAD_ID)[:, 1:].long()
        if is_ragged(states):
            return cross_entropy(self.out(states[token_mask]), following[token_mask], reduction="sum") / len(
                tokens
            )
        costs = cross_entropy(self.out(states).flatten(0, 1), following.flatten(), reduction="none")
        return costs.view_as(token_mask).masked_fill(~token_mask, 0).sum() / len(tokens)

    def _states(
        self, regions: Float[Tensor, "T M d"], mask: Bool[Tensor, "T M"], tokens: Int[Tensor, "T N"]
    ) -> Float[Tensor, "T N h"]:
        encoded, _ = self.encoder(self.dropout(self.project(regions)))
        state = last_states(encoded, mask)
        keys, words = self.look_at(encoded), self.dropout(look_up(self.embed, tokens))
        left_out = ~real_or_all(mask)
        states = []
        for word in words.unbind(1):
            logits = self.weigh((keys + self.look_from(state)[:, None]).tanh()).squeeze(2)
            look = at_least_float32(logits).masked_fill(left_out, -torch.inf).softmax(1).to(encoded.dtype)
            seen = self.dropout((look[:, None] @ encoded).squeeze(1))
            state = self.cell(torch.cat([word.to(seen.dtype), seen], 1), state)
            states.append(state)
        return torch.stack(states, 1)
