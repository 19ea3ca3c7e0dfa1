"""SGR and SAF: Diao et al., Similarity Reasoning and Filtration for Image-Text Matching, AAAI 2021.

A pair of image and text becomes a set of nodes, one for the whole and one for each word:

    x_0 = unit(W_g (v - t)^2)       of the two pooled vectors
    x_n = unit(W_l (a_n - w_n)^2)   of word n and what it attends to, as in SCAN t2i

SGR lets the nodes reason over a graph, SAF weights them; the score is sigmoid(W x) of the result.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from selhn.base.errors import SelhnError
from selhn.base.types import at_least_float32
from selhn.models.builders import WordSettings, xavier
from selhn.models.cross_attention import CrossAttention, RegionEncoder, SelfAttentionPool, WordEncoder
from selhn.models.layouts import FRAGMENT_NAMES, FRAGMENTS, AuthorsLayout
from selhn.models.scan import shown_attention
from selhn.models.table import Paper, model
from selhn.ops import Pairing, again, chunks, is_ragged, unit, unit_attention
from selhn.ops.batch_norm import over_ranks, ranks_of
from selhn.ops.differences import LinearWeights, compared_nodes, node_precision, projected_differences
from selhn.ops.fragments import joined
from selhn.ops.reasoning import can_reason, reasoned

Nodes = Float[Tensor, "I T X s"]
NodeMask = Bool[Tensor, "T X"]
Statistics = Float[Tensor, "r T"]
"""Mean and variance of each text (r = 2), or none (r = 0)."""

# Bytes of nodes processed at a time, so that the passes over them stay in a CPU's cache.
CPU_CHUNK_BYTES = 2**23


class GraphStep(nn.Module):
    """X <- ReLU(W_v (softmax((W_q X) (W_k X)') X))."""

    def __init__(self, sim_dim: int):
        super().__init__()
        self.query, self.key, self.value = (xavier(sim_dim, sim_dim) for _ in range(3))
        self.key.bias.requires_grad_(False)  # it too adds the same to all logits

    def mixed(self) -> LinearWeights:
        """(W_q x)' (W_k y) = (W_k' W_q x)' y: one product with a matrix for two."""
        return LinearWeights(self.key.weight.T @ self.query.weight, self.key.weight.T @ self.query.bias)

    def forward(self, nodes: Nodes, mask: NodeMask, first: int) -> Float[Tensor, "I T {first} s"]:
        logits = linear(nodes[:, :, :first], *self.mixed()) @ nodes.transpose(2, 3)
        edges = at_least_float32(logits).masked_fill(~mask[:, None, :], -torch.inf).softmax(3)
        return self.value(edges.to(nodes.dtype) @ nodes).relu()


class GraphReasoning(nn.Module):
    """SGR: a few steps over the graph of all nodes; the result is the global node."""

    def __init__(self, sim_dim: int, steps: int):
        super().__init__()
        self.steps = nn.ModuleList(GraphStep(sim_dim) for _ in range(steps))

    def forward(self, nodes: Nodes, mask: NodeMask) -> tuple[Float[Tensor, "I T s"], Statistics]:
        kind, none = nodes.device.type, nodes.new_empty(0, len(mask))
        halved = nodes.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else nodes
        if can_reason(halved):
            steps = [step for step in self.steps if isinstance(step, GraphStep)]
            values = [step.value for step in steps[:-1]]
            seen = reasoned(halved, mask, [step.mixed() for step in steps], values)
            return steps[-1].value(seen).relu(), none
        for step in self.steps:
            nodes = step(nodes, mask, 1 if step is self.steps[-1] else len(mask.T))
        return nodes[:, :, 0], none


class AttentionFiltration(nn.Module):
    """SAF: unit(sum of b_n x_n), b = sigmoid(BN(W x_n)) divided by its sum."""

    def __init__(self, sim_dim: int):
        super().__init__()
        self.attention = xavier(sim_dim, 1)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, nodes: Nodes, mask: NodeMask) -> tuple[Float[Tensor, "I T s"], Statistics]:
        """One vector per pair, and in training the statistics for `remember`."""
        weights, statistics = self.weigh(nodes, mask)
        return unit((weights.to(nodes.dtype)[:, :, None] @ nodes).squeeze(2)), statistics

    def weigh(self, nodes: Nodes, mask: NodeMask) -> tuple[Float[Tensor, "I T X"], Statistics]:
        weights = at_least_float32(self.attention(nodes).squeeze(3))
        statistics = weights.new_empty(0, len(mask))
        mean, variance = self.norm.get_buffer("running_mean"), self.norm.get_buffer("running_var")
        if self.training:
            # Official: texts are processed one by one, so each has its own statistics.
            present = mask.to(weights.dtype)
            count = over_ranks(self.norm, (len(nodes) * mask.sum(1)).to(weights.dtype))
            mean = over_ranks(self.norm, (weights * present).sum((0, 2))) / count
            variance = (
                over_ranks(self.norm, ((weights - mean[:, None]).square() * present).sum((0, 2))) / count
            )
            statistics = torch.stack([mean, variance * count / (count - 1).clamp(min=1)]).detach()
        scale = (variance[:, None] + self.norm.eps).rsqrt() * self.norm.weight
        weights = (weights - mean[:, None]) * scale + self.norm.bias
        weights = weights.sigmoid().masked_fill(~mask, 0)
        return weights / (weights.sum(2, keepdim=True) + 1e-8), statistics

    @torch.no_grad()
    def remember(self, statistics: Float[Tensor, "2 T"], mask: Bool[Tensor, "T N"]) -> None:
        """Running mean and variance as after an update for every text, the longest first.

        r <- (1 - m)^T r + sum over places c of m (1 - m)^(T - 1 - c) statistic_c
        """
        assert self.norm.momentum is not None
        # Official: batches are sorted by length, so that the shortest texts weigh most.
        place = mask.sum(1).argsort(descending=True, stable=True).argsort()
        kept, texts = 1 - self.norm.momentum, len(mask)
        share = self.norm.momentum * kept ** (texts - 1 - place).to(statistics.dtype)
        for name, news in zip(("running_mean", "running_var"), statistics, strict=True):
            running = self.norm.get_buffer(name)
            running.mul_(kept**texts).add_((share * news).sum().to(running.dtype))
        self.norm.get_buffer("num_batches_tracked").add_(texts)


class SimilarityHead(nn.Module):
    """The logits of SGR or SAF, from fragments with a pooled vector each."""

    images_apart = True

    def __init__(
        self, dim: int, sim_dim: int, smooth: float, reasoning: GraphReasoning | AttentionFiltration
    ):
        super().__init__()
        self.smooth = smooth
        self.local = xavier(dim, sim_dim)
        self.whole = xavier(dim, sim_dim)
        self.reasoning = reasoning
        self.last = xavier(sim_dim, 1)
        # SAF has batch statistics over the images of a text; several processes sum theirs.
        self.pairs_apart = isinstance(reasoning, GraphReasoning)

    def forward(self, pairing: Pairing) -> Float[Tensor, "..."]:
        if pairing.aligned:
            if self.training and not self.pairs_apart:
                raise SelhnError(
                    "SAF in training has statistics over all images of a text: score all pairs, or call eval()"
                )
            return self._logits(pairing)[0][0]
        dim, sim_dim = self.local.in_features, self.local.out_features
        # Passes over products of regions and words, differences of width d, and nodes. A CPU keeps projected
        # differences and makes the nodes again; kernels make differences in the backward pass only.
        wide = sim_dim if is_ragged(pairing.contexts.vectors) else 4 * dim + 20 * sim_dim
        if self._precision(pairing) is not None:
            wide = dim + 20 * sim_dim if torch.is_grad_enabled() else 8 * sim_dim
        filtration = (
            self.reasoning if isinstance(self.reasoning, AttentionFiltration) and self.training else None
        )
        ranks = None if filtration is None else ranks_of(filtration.norm)
        logits, statistics = pairing.scored(self._logits, 6, 6, wide, wide, self.training, ranks)
        if filtration is not None:
            filtration.remember(statistics, pairing.queries.mask)
        return logits

    def attention(self, pairing: Pairing) -> dict[str, Float[Tensor, "..."]]:
        """The attention of the words of one pair; with SAF, also the weight of each word's node."""
        weights: dict[str, Tensor] = dict(shown_attention(pairing, self.smooth, ("t2i",)))
        if isinstance(self.reasoning, AttentionFiltration):
            nodes = unit(with_whole(*self._differences(pairing)))
            weights["kept"] = self.reasoning.weigh(nodes, and_whole(pairing.queries.mask))[0][0, 0, 1:]
        return weights

    def _logits(self, pairing: Pairing) -> tuple[Float[Tensor, "i T"], Statistics]:
        """The logits, and the statistics of each text.

        `remember` must not run here, where blocks are computed twice.
        """
        mask = and_whole(pairing.queries.mask)
        half = self._precision(pairing)
        if half is not None:
            everywhere = not self.pairs_apart
            nodes = compared_nodes(pairing, self.local, self.whole, self.smooth, half, everywhere)
            with torch.autocast(nodes.device.type, half):
                return self._of_nodes(nodes, mask)
        whole, local = self._differences(pairing)
        if not is_ragged(local):
            return self._of_nodes(unit(with_whole(whole, local)), mask)
        apart = self.pairs_apart or not self.training
        chunk_bytes = CPU_CHUNK_BYTES if apart else 4 * local.numel()
        some = chunks(len(local), 4 * local[:1].numel(), chunk_bytes, local.device)
        of_nodes = again(lambda whole, local: self._of_nodes(unit(with_whole(whole, local)), mask))
        logits, statistics = joined([of_nodes(whole[own], local[own]) for own in some], 0)
        return logits, statistics

    def _differences(self, pairing: Pairing) -> tuple[Float[Tensor, "i T s"], Float[Tensor, "i T N s"]]:
        """W_g (v - t)^2 and W_l (a_n - w_n)^2."""
        assert pairing.contexts.whole is not None
        assert pairing.queries.whole is not None
        weights, words = unit_attention(pairing, self.smooth), pairing.of_queries(pairing.queries.vectors)
        local = projected_differences(
            weights.flatten(1, 2), pairing.contexts.vectors, words.flatten(1, 2), self.local
        )
        whole = (pairing.of_contexts(pairing.contexts.whole) - pairing.queries.whole).square()
        return self.whole(whole), pairing.by_query(local.unflatten(1, weights.shape[1:3]))

    def _precision(self, pairing: Pairing) -> torch.dtype | None:
        """The precision of nodes made by kernels; None if they are not."""
        return node_precision(pairing, self.local)

    def _of_nodes(self, nodes: Nodes, mask: NodeMask) -> tuple[Float[Tensor, "I T"], Statistics]:
        vectors, statistics = self.reasoning(nodes, mask)
        with torch.autocast(nodes.device.type, enabled=False):
            return self.last(vectors.to(self.last.weight.dtype)).squeeze(2), statistics


def with_whole(whole: Float[Tensor, "c Q s"], local: Float[Tensor, "c Q L s"]) -> Float[Tensor, "c Q X s"]:
    """X = 1 + L nodes: that of the whole, then those of the fragments."""
    return torch.cat([whole[:, :, None], local], 2)


def and_whole(mask: Bool[Tensor, "Q L"]) -> Bool[Tensor, "Q X"]:
    """The mask of such nodes: the whole is always there."""
    return pad(mask, (1, 0), value=True)


@dataclass(frozen=True)
class SimilaritySettings(WordSettings):
    """Settings of a model that reasons over similarity vectors."""

    sim_dim: int = 256
    num_regions: int = 36
    smooth: float = 9.0
    dropout: float = 0.4


_PAPER = Paper("Diao et al., AAAI 2021", "https://arxiv.org/abs/2101.01368")
POOL_NAMES = [
    (r"\.embedding_local\.", ".local."),
    (r"\.embedding_global\.", ".mean."),
    (r"\.embedding_common\.0\.", ".common."),
]
STEP_NAMES = [(r"\.graph_(query|key)_w\.", r".\1."), (r"\.sim_graph_w\.", ".value.")]
_SGRAF_NAMES = [
    *FRAGMENT_NAMES,
    (r"^sim_enc\.v_global_w\.", "image.pool."),
    (r"^sim_enc\.t_global_w\.", "text.pool."),
    *POOL_NAMES,
    (r"^sim_enc\.sim_tranloc_w\.", "head.local."),
    (r"^sim_enc\.sim_tranglo_w\.", "head.whole."),
    (r"^sim_enc\.sim_eval_w\.", "head.last."),
    (r"^sim_enc\.SGR_module\.", "head.reasoning.steps."),
    *STEP_NAMES,
    (r"^sim_enc\.SAF_module\.attn_sim_w\.", "head.reasoning.attention."),
    (r"^sim_enc\.SAF_module\.bn\.", "head.reasoning.norm."),
]


def _layout(module: str) -> AuthorsLayout:
    return AuthorsLayout(
        _SGRAF_NAMES,
        {**FRAGMENTS, "module_name": module},
        parts=("img_enc.", "txt_enc.", "sim_enc."),
        axes=(
            ("num_regions", "sim_enc.v_global_w.embedding_local.1.weight", 0),
            ("sim_dim", "sim_enc.sim_eval_w.weight", 1),
        ),
        numbered={"steps": r"sim_enc\.SGR_module\.\d+"},
    )


@model(_PAPER, "cross-attention", official=_layout("SGR"))
def sgr(common: SimilaritySettings, steps: int = 3) -> CrossAttention:
    """SGR: similarity graph reasoning."""
    head = SimilarityHead(common.dim, common.sim_dim, common.smooth, GraphReasoning(common.sim_dim, steps))
    return with_pooling(head, common)


@model(_PAPER, "cross-attention", official=_layout("SAF"))
def saf(common: SimilaritySettings) -> CrossAttention:
    """SAF: similarity attention filtration."""
    head = SimilarityHead(common.dim, common.sim_dim, common.smooth, AttentionFiltration(common.sim_dim))
    return with_pooling(head, common)


def with_pooling(
    head: nn.Module, common: SimilaritySettings, pool: nn.Module | None = None
) -> CrossAttention:
    """Two encoders that also pool their fragments, and a head whose numbers become sigmoids."""
    dim, dropout = common.dim, common.dropout
    image = RegionEncoder(
        common.feature_dim, dim, pool or SelfAttentionPool(dim, dropout, common.num_regions)
    )
    text = WordEncoder(common.num_words, common.word_dim, dim, dropout, SelfAttentionPool(dim, dropout))
    return CrossAttention(image, text, head, sigmoid=True, tokenizer=common.tokenizer)
