"""CMCAN: Zhang et al., Show Your Faith: Cross-Modal Confidence-Aware Network for Image-Text Matching, AAAI 2022.

As in SGRAF, a pair becomes nodes; here words attend to regions and regions to words, and every region has a
confidence: how much the text says about its surroundings:

    t_n = unit(ReLU(W_t (a_n - w_n)^2))     of word n and what it attends to
    r_m = unit(ReLU(W_r (a_m - v_m)^2))     of region m and what it attends to
    g   = unit(ReLU(W_g (v - t)^2))         of the two pooled vectors
    c_m = sigmoid(LN_m(W_c (g * unit(ReLU(W_p (p_m - t)^2)))))

p_m is pooled over region m and its neighbours. The nodes g, t_n and the nodes g, c_m r_m reason separately,
as in SGR; the score is sigmoid(W [x; y]) of the two results.
"""

from contextlib import nullcontext
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from selhn.base.types import at_least_float32
from selhn.models.builders import xavier
from selhn.models.cross_attention import CrossAttention, SelfAttentionPool
from selhn.models.layouts import FRAGMENT_NAMES, UNIT_VECTORS, AuthorsLayout
from selhn.models.scan import shown_attention
from selhn.models.sgraf import (
    POOL_NAMES,
    STEP_NAMES,
    GraphReasoning,
    SimilaritySettings,
    and_whole,
    with_pooling,
    with_whole,
)
from selhn.models.table import Paper, model
from selhn.ops import Fragments, Pairing, unit, unit_attention
from selhn.ops.differences import attended_nodes, node_precision, projected_differences


class NeighbourPool(SelfAttentionPool):
    """The vector of the whole image, and edges that sum up each region with its neighbours.

    p_m = sum over j of softmax_j(l_j) v_j / |sum over all of softmax(l) v|, with the logits l of the whole.
    """

    def __init__(self, dim: int, dropout: float, num_regions: int, neighbours: int):
        super().__init__(dim, dropout, num_regions)
        self.neighbours = neighbours

    def forward(self, fragments: Fragments, adjacency: Shaped[Tensor, "n K K"] | None = None) -> Fragments:
        assert adjacency is not None  # the model declares that it needs the adjacency
        mask, logits = fragments.mask, self.logits(fragments)
        whole = self.pooled(fragments.vectors, logits)
        near = adjacency.bool() & mask[:, None] & mask[:, :, None]
        near = near & (near.cumsum(2) <= self.neighbours)
        # Official: a region replaces each neighbour that it lacks, and then counts several times.
        itself = torch.eye(mask.shape[1], dtype=torch.int64, device=mask.device)
        times = near + itself * (self.neighbours - near.sum(2, keepdim=True))
        logits = logits.masked_fill(~mask, 0)[:, None] + times.to(logits.dtype).log()
        # Official: divided by the length of the vector of the whole.
        length = torch.linalg.vector_norm(whole, dim=1) + 1e-8
        edges = logits.softmax(2) / length[:, None, None]
        return Fragments(fragments.vectors, mask, unit(whole), edges=edges[..., None])


class ConfidentReasoning(nn.Module):
    """The logits of CMCAN, from fragments with a pooled vector each, and images with edges."""

    pairs_apart = True

    def __init__(self, dim: int, sim_dim: int, num_regions: int, steps: int, smooth: float):
        super().__init__()
        self.smooth = smooth
        self.by_word, self.by_region, self.around, self.whole = (xavier(dim, sim_dim) for _ in range(4))
        self.confidence = xavier(sim_dim, 1)
        # The bias adds the same to all regions, which the norm cancels; published weights have it.
        self.confidence.bias.requires_grad_(False)
        self.norm = nn.LayerNorm(num_regions)
        self.textual, self.visual = (GraphReasoning(sim_dim, steps) for _ in range(2))
        self.last = xavier(2 * sim_dim, 1)

    def forward(self, pairing: Pairing) -> Float[Tensor, "..."]:
        dim, sim_dim = self.whole.in_features, self.whole.out_features
        # Products, differences of width d, and passes over nodes.
        wide = 4 * dim + 20 * sim_dim
        if self._precision(pairing) is not None:  # kernels make differences in the backward pass only
            wide = dim + 12 * sim_dim if torch.is_grad_enabled() else 8 * sim_dim
        return pairing.scored(self._logits, products=12, regions=2 * wide, words=wide)

    def attention(self, pairing: Pairing) -> dict[str, Float[Tensor, "N M"]]:
        return shown_attention(pairing, self.smooth)

    def _logits(self, pairing: Pairing) -> Float[Tensor, "i T"]:
        half = self._precision(pairing)
        with nullcontext() if half is None else torch.autocast(pairing.device.type, half):
            return self._of_pairs(pairing.with_products(), half)

    def _precision(self, pairing: Pairing) -> torch.dtype | None:
        """The precision of nodes made by kernels; None if they are not."""
        of_words = node_precision(pairing, self.by_word)
        return None if of_words is None else node_precision(pairing.turned(), self.by_word)

    def _of_pairs(self, pairing: Pairing, half: torch.dtype | None) -> Float[Tensor, "i T"]:
        images, texts, by_region = pairing.contexts, pairing.queries, pairing.turned()
        assert images.whole is not None
        assert images.edges is not None
        assert texts.whole is not None
        to_regions, to_words = (unit_attention(side, self.smooth) for side in (pairing, by_region))
        with torch.autocast(pairing.device.type, enabled=False):
            around = replace(images, vectors=images.edges[..., 0] @ images.vectors)
        whole = unit(self.whole((pairing.of_contexts(images.whole) - texts.whole).square()).relu())
        whole = whole if half is None else whole.to(half)
        words = self._compared(pairing, to_regions, self.by_word, half)
        textual, _ = self.textual(with_whole(whole, words), and_whole(texts.mask))
        # From here on texts come first: nodes of regions have the mask of their image.
        turned_whole = pairing.exchanged(whole)
        alone = replace(
            by_region, contexts=Fragments(texts.whole[:, None], texts.mask[:, :1]), queries=around
        )
        near = self._compared(alone, to_words.new_ones(*to_words.shape[:3], 1), self.around, half)
        confidence = self._confidence(near * turned_whole[:, :, None], images.mask)
        regions = self._compared(by_region, to_words, self.by_region, half)
        visual, _ = self.visual(with_whole(turned_whole, regions * confidence), and_whole(images.mask))
        both = torch.cat([textual, by_region.exchanged(visual)], 2)
        with torch.autocast(both.device.type, enabled=False):
            return self.last(both.to(self.last.weight.dtype)).squeeze(2)

    def _compared(
        self, pairing: Pairing, weights: Float[Tensor, "C q L K"], layer: nn.Linear, half: torch.dtype | None
    ) -> Float[Tensor, "c Q L s"]:
        """unit(ReLU(W (a - q)^2)) of each fragment and what it attends to.

        `half` is the precision of the kernels, None for the way without them.
        """
        contexts = pairing.contexts.vectors
        if half is not None:
            return attended_nodes(weights, contexts, pairing.queries.vectors, layer, half)
        flat = pairing.of_queries(pairing.queries.vectors).flatten(1, 2)
        found = projected_differences(weights.flatten(1, 2), contexts, flat, layer)
        return pairing.by_query(unit(found.relu()).unflatten(1, weights.shape[1:3]))

    def _confidence(
        self, near: Float[Tensor, "c I M s"], mask: Bool[Tensor, "I M"]
    ) -> Float[Tensor, "c I M 1"]:  # fmt: skip
        """sigmoid(LN(W_c x)); the norm is over the real regions of an image."""
        logits = at_least_float32(self.confidence(near).squeeze(3))
        count = mask.sum(1, keepdim=True).clamp(min=1)
        mean = logits.masked_fill(~mask, 0).sum(2, keepdim=True) / count
        centred = (logits - mean).masked_fill(~mask, 0)
        scale = (centred.square().sum(2, keepdim=True) / count + self.norm.eps).rsqrt()
        places = mask.shape[1]
        normed = centred * scale * self.norm.weight[:places] + self.norm.bias[:places]
        return normed.sigmoid()[..., None].to(near.dtype)


_PAPER = Paper("Zhang et al., AAAI 2022", "https://github.com/CrossmodalGroup/CMCAN")
_CMCAN_NAMES = [
    *FRAGMENT_NAMES,
    (r"^sim_embv\.t_global_w\.", "text.pool."),
    *POOL_NAMES,
    (r"^sim_embv\.emb_(local|common|global)_?(li)?\.", r"image.pool.\1.0."),
    (r"^sim_embv\.emb_(local|global)_bn\.", r"image.pool.\1.1."),
    (r"^image\.pool\.global\.", "image.pool.mean."),
    (r"^image\.pool\.common\.0\.", "image.pool.common."),
    (r"^sim_embt\.sim_tranloc_wt\.", "head.by_word."),
    (r"^sim_embv\.sim_tranloc_wv\.", "head.by_region."),
    (r"^sim_embv\.sim_tranpar_wv\.", "head.around."),
    (r"^sim_embv\.sim_tranglo_w\.", "head.whole."),
    (r"^sim_embv\.emb_similarity\.", "head.confidence."),
    (r"^sim_embv\.ln\.", "head.norm."),
    (r"^sim_enc\.sim_eval_w\.", "head.last."),
    (r"^sim_enc\.module_t\.", "head.textual.steps."),
    (r"^sim_enc\.module_v\.", "head.visual.steps."),
    *STEP_NAMES,
]
_LAYOUT = AuthorsLayout(
    _CMCAN_NAMES,
    UNIT_VECTORS,
    parts=("img_enc.", "txt_enc.", "sim_embt.", "sim_embv.", "sim_enc."),
    axes=(
        ("num_regions", "sim_embv.ln.weight", 0),
        ("sim_dim", "sim_enc.sim_eval_w.weight", 1),
        ("sim_dim", "sim_embt.sim_tranloc_wt.weight", 0),
    ),
    numbered={"steps": r"sim_enc\.module_t\.\d+"},
)


@model(_PAPER, "cross-attention", official=_LAYOUT)
def cmcan(common: SimilaritySettings, steps: int = 3, neighbours: int = 5) -> CrossAttention:
    """CMCAN: similarity graph reasoning in both directions, with a confidence for each region."""
    head = ConfidentReasoning(common.dim, common.sim_dim, common.num_regions, steps, common.smooth)
    pool = NeighbourPool(common.dim, common.dropout, common.num_regions, neighbours)
    model = with_pooling(head, common, pool)
    model.side = {"adjacency": True}
    return model
