"""IMRAM: Chen et al., Iterative Matching with Recurrent Attention Memory, CVPR 2020.

Words attend to regions several times, as in SCAN t2i. The first query q of a word w is the word itself; then
the query remembers what it has seen:

    x = sum_k p_k v_k,  p the weights of SCAN with which q attends to the regions v
    score of the step = mean over words of cos(w, x)
    q <- g * q + (1 - g) * o,  o = tanh(W_o [q; x] + b_o),  g = sigmoid(W_g [q; x] + b_g)

Regions attend to words in the same way, with weights of their own. A score is the sum over the steps, and
over both directions in the full model.

This code computes the same with a fifth of the work: W [q; x] = W_q q + W_x x, where W_x x is sum_k p_k
W_x v_k, with W_x v_k made once per region, and the first W_q q once per word. The cosine needs no x, as in
`attended_cosines`. The authors' program also computes an unused update after the last step.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import not_

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from selhn.base.errors import SelhnError
from selhn.models.builders import WordSettings
from selhn.models.cross_attention import CrossAttention, with_head
from selhn.models.layouts import FRAGMENT_NAMES, FRAGMENTS, SMOOTH, AuthorsLayout
from selhn.models.table import Paper, model
from selhn.ops import Direction, Pairing, chunks, fragment_mean, is_ragged, softmax_attention, unit
from selhn.ops.attention import weighted_cosines
from selhn.ops.memory import memory_precision, memory_products, remembered

# Bytes of memories processed at a time, so that the passes over them stay in a CPU's cache.
CHUNK_BYTES = 2**24


@dataclass(frozen=True)
class MemorySettings(WordSettings):
    """Settings of all forms of IMRAM. The authors' scripts do not normalise memories."""

    smooth: float = 9.0
    steps: int = 3
    memory_norm: bool = False


class Memory(nn.Module):
    """Queries that attend to contexts repeatedly; with `normed` an updated query has length 1."""

    def __init__(self, settings: MemorySettings):
        super().__init__()
        self.smooth, self.steps, self.normed = settings.smooth, settings.steps, settings.memory_norm
        self.output = nn.Linear(2 * settings.dim, settings.dim)
        self.gate = nn.Linear(2 * settings.dim, settings.dim)

    def forward(self, pairing: Pairing) -> tuple[Float[Tensor, "K c Q"], Float[Tensor, "C M L q"]]:
        """The scores of all K steps, and the attention of the last."""
        half = memory_precision(pairing.contexts.vectors, pairing.queries.vectors)
        with nullcontext() if half is None else torch.autocast(pairing.device.type, half):
            return self._looks(pairing, half)

    def _looks(
        self, pairing: Pairing, half: torch.dtype | None
    ) -> tuple[Float[Tensor, "K c Q"], Float[Tensor, "C M L q"]]:
        """`half` is the precision of the kernels, None to compute without them."""
        contexts, queries, dim = pairing.contexts, pairing.queries, self.output.out_features
        both = torch.cat([self.output.weight, self.gate.weight])
        bias = torch.cat([self.output.bias, self.gate.bias])
        of_query, of_seen = both[:, :dim], both[:, dim:]
        seen = linear(contexts.vectors, of_seen)
        first = pairing.of_queries(queries.vectors).transpose(1, 2).flatten(1, 2)
        # The updated queries: without padding if shapes may vary, otherwise all L q of them.
        ragged = is_ragged(first) and not pairing.aligned
        rows = queries.mask.T.flatten().nonzero().squeeze(1) if ragged else None
        first = first if rows is None else first.index_select(1, rows)
        known = linear(first, of_query, bias)
        first = first if half is None else first.to(half)
        pairing = replace(pairing.with_products(), queries=queries.with_gram())
        scores, looks = [], []
        for some in chunks(len(contexts), 4 * 2 * dim * first.shape[1], CHUNK_BYTES, pairing.device):
            own = some if pairing.aligned else slice(None)
            part, memory, gates, by_step = pairing[some], first[own], known[own], []
            now, padding = part.products(), ~part.of_queries(part.queries.mask).mT[:, None]
            for step in range(self.steps):
                weights = softmax_attention(now, part.contexts.mask, self.smooth)
                by_step.append(fragment_mean(weighted_cosines(part, weights), part.queries.mask))
                if step + 1 == self.steps:
                    break
                flat = weights.flatten(2)
                of_rows = flat if rows is None else flat.index_select(2, rows)
                memory = remembered(memory, gates, of_rows, seen[some])
                memory = (unit(memory) if self.normed else memory).to(first.dtype)
                with torch.autocast(pairing.device.type, enabled=False):
                    now = memory_products(part.contexts.vectors, memory)
                    now = now if rows is None else torch.zeros_like(flat).index_copy(2, rows, now)
                    # A padding query is not zero after an update, and must not count in the norm over
                    # queries.
                    now = now.view_as(weights).masked_fill(padding, 0)
                if step + 2 < self.steps:
                    gates = linear(memory, of_query, bias)
            scores.append(torch.stack(by_step))
            looks.append(weights)
        return torch.cat(scores, 2 if pairing.aligned else 1), torch.cat(looks)


class RecurrentAttention(nn.Module):
    """The scores of IMRAM: a memory for each direction."""

    pairs_apart = True

    def __init__(self, directions: tuple[Direction, ...], settings: MemorySettings):
        super().__init__()
        self.directions, self.steps = directions, settings.steps
        self.memories = nn.ModuleDict({way: Memory(settings) for way in directions})

    def forward(self, pairing: Pairing) -> Float[Tensor, "..."]:
        # Products and weights of every step, and the memories, which are several times as wide with
        # gradients.
        images, texts = pairing.contexts.vectors, pairing.queries.vectors
        copies = 12 * self.steps if torch.is_grad_enabled() else 6
        if memory_precision(images, texts) is not None:
            copies = 2 * self.steps if torch.is_grad_enabled() else 2
        regions, words = (copies * images.shape[2] * (way in self.memories) for way in ("i2t", "t2i"))
        return pairing.scored(self._score, products=6 * self.steps, regions=regions, words=words)

    def attention(self, pairing: Pairing) -> dict[str, Float[Tensor, "N M"]]:
        """The attention of words and regions in the last step."""
        return pairing.shown(self.directions, lambda way, side: self.memories[way](side)[1])

    def _score(self, pairing: Pairing) -> Float[Tensor, "i T"]:
        """The sum over all steps and directions."""
        return pairing.summed(self.directions, lambda way, side: self.memories[way](side)[0].sum(0))


def _imram(common: MemorySettings, *directions: Direction) -> CrossAttention:
    if common.steps < 1:
        raise SelhnError(f"steps of IMRAM is {common.steps}: choose at least 1")
    return with_head(RecurrentAttention(directions, common), common)


_PAPER = Paper("Chen et al., CVPR 2020", "https://arxiv.org/abs/2003.03772")
_IMRAM_NAMES = [
    (r"^img_enc\.fc_local\.", "image.fc."),
    *FRAGMENT_NAMES,
    (r"^linear_(t2i|i2t)\.", r"head.memories.\1.output."),
    (r"^gate_(t2i|i2t)\.", r"head.memories.\1.gate."),
]


def _layout(mode: str, unused: Direction | None = None) -> AuthorsLayout:
    """`unused`: the direction that a one-directional model has weights for but never uses."""
    return AuthorsLayout(
        [*_IMRAM_NAMES, *([] if unused is None else [(rf"^head\.memories\.{unused}\..*", "")])],
        {**FRAGMENTS, "model_mode": mode},
        {**SMOOTH, "iteration_step": ("steps", int), "no_IMRAM_norm": ("memory_norm", not_)},
        axes=(("feature_dim", "img_enc.fc_local.weight", 1),),
    )


@model(_PAPER, "cross-attention", official=_layout("text_IMRAM", unused="i2t"))
def imram_text(common: MemorySettings) -> CrossAttention:
    """Text-IMRAM: words that attend to regions, several times."""
    return _imram(common, "t2i")


@model(_PAPER, "cross-attention", official=_layout("image_IMRAM", unused="t2i"))
def imram_image(common: MemorySettings) -> CrossAttention:
    """Image-IMRAM: regions that attend to words, several times."""
    return _imram(common, "i2t")


@model(_PAPER, "cross-attention", official=_layout("full_IMRAM"))
def imram(common: MemorySettings) -> CrossAttention:
    """IMRAM: both directions, summed."""
    return _imram(common, "t2i", "i2t")
