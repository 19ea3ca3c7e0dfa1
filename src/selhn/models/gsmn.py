"""GSMN: Liu et al., Graph Structured Network for Image-Text Matching, CVPR 2020.

Images and texts are graphs. A node is a region or a word, which attends to the other side as in SCAN; its
matching vector m_i has the cosines of both in 16 blocks of channels. Neighbouring nodes exchange
theirs, with kernels k, and a small network turns each node into one number:

    h_i = concat_k( W_k sum_j e_ijk m_j + b_k ),   score = mean_i out_2(tanh(out_1(h_i))), of regions and of words

Regions are joined by the distance rho and the angle theta of their boxes' centres, e_ijk a Gaussian in both;
words by softmax(smooth * w_i . w_j) over all words (dense), or over those that a parse joins (sparse).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.parametrizations import weight_norm

from selhn.base.errors import SelhnError
from selhn.models.builders import WordSettings
from selhn.models.cross_attention import CrossAttention, RegionEncoder, WordEncoder
from selhn.models.layouts import FRAGMENT_NAMES, SMOOTH, UNIT_VECTORS, AuthorsLayout
from selhn.models.scan import shown_attention
from selhn.models.table import Paper, model
from selhn.ops import Direction, Fragments, Pairing, real_or_all, softmax_attention
from selhn.ops.block_cosines import block_cosines

# Official: every neighbour carries the node's own matching vector, so that sum_j e_ij m_j is m_i times a number: 1 for
# words (dense and sparse are one function, and kernels of words cancel), sum_j e_ijk for regions, where e is normalised
# over the kernels k. Paper: the vectors of the neighbours. Its text leaves the sum of e open: over the neighbours here.


class RegionGraph(nn.Module):
    """Edges of regions by boxes: exp(-(rho - mean)^2 / 2 p^2) exp(-(theta - mean)^2 / 2 p^2), normalised."""

    def __init__(self, kernels: int, own_vectors: bool):
        super().__init__()
        self.own_vectors = own_vectors
        self.mean_rho = nn.Parameter(torch.rand(kernels, 1))
        self.mean_theta = nn.Parameter((torch.rand(kernels, 1) * 2 - 1) * math.pi)
        self.precision_rho = nn.Parameter(torch.rand(kernels, 1))
        self.precision_theta = nn.Parameter(torch.rand(kernels, 1))

    def forward(self, fragments: Fragments, boxes: Float[Tensor, "n K 4"]) -> Fragments:
        boxes, mask = boxes.to(fragments.vectors.dtype), fragments.mask
        centres = (boxes[..., :2] + boxes[..., 2:]) / 2
        across, down = (centres[:, :, None] - centres[:, None]).unbind(-1)
        rho = (across.square() + down.square()).sqrt()[..., None] - self.mean_rho[:, 0]
        angle = (torch.atan2(across, down)[..., None] - self.mean_theta[:, 0]).abs()
        theta = torch.minimum(angle, (2 * math.pi - angle).abs())
        logs = -0.5 * rho.square() / (1e-14 + self.precision_rho[:, 0].square())
        logs = logs - 0.5 * theta.square() / (1e-14 + self.precision_theta[:, 0].square())
        if self.own_vectors:
            sums = (logs.softmax(3) * mask[:, None, :, None]).sum(2)
            edges = torch.diag_embed(sums.transpose(1, 2)).permute(0, 2, 3, 1)
        else:
            real = real_or_all(mask)[:, None, :, None]
            edges = logs.masked_fill(~real, -torch.inf).softmax(2)
        return Fragments(fragments.vectors, mask, edges=edges)


class WordGraph(nn.Module):
    """Edges of words: softmax(smooth * w_i . w_j), or its part along a parse, which then sums to 1 again."""

    def __init__(self, smooth: float, own_vectors: bool):
        super().__init__()
        self.smooth, self.own_vectors = smooth, own_vectors

    def forward(self, fragments: Fragments, dependencies: Int[Tensor, "n E 2"] | None = None) -> Fragments:
        vectors, mask = fragments.vectors, fragments.mask
        if self.own_vectors:
            itself = torch.eye(mask.shape[1], dtype=vectors.dtype, device=mask.device)
            return Fragments(vectors, mask, edges=itself.expand(len(mask), -1, -1)[..., None])
        joined = real_or_all(mask)[:, None]
        if dependencies is not None:
            joined = joined & parsed(dependencies, mask.shape[1])
        joined = joined | torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)  # padding has itself
        gram = fragments.products()
        edges = (self.smooth * gram).masked_fill(~joined, -torch.inf).softmax(2)
        return Fragments(vectors, mask, gram=gram, edges=edges[..., None])


def parsed(dependencies: Int[Tensor, "n E 2"], num_words: int) -> Bool[Tensor, "n N N"]:
    """Which words a parse joins: head and dependent, in both directions. The root is not a word.

    Words are counted from 1, after the start token.
    """
    pairs = dependencies.long()
    head, dependent = pairs.unbind(2)
    valid = ((pairs > 0) & (pairs < num_words)).all(2)
    # Pairs that do not count go to an extra place that is cut off: no shape depends on values.
    place = torch.where(valid, head * num_words + dependent, num_words * num_words)
    found = torch.zeros(len(pairs), num_words * num_words + 1, dtype=torch.bool, device=pairs.device)
    one_way = found.scatter(1, place, torch.ones_like(valid))[:, :-1].unflatten(1, (num_words, num_words))
    return one_way | one_way.transpose(1, 2)


class StructureScores(nn.Module):
    """One side of a pair: matching vectors along the edges, then a number for each node, then their mean."""

    def __init__(self, blocks: int, hidden: int, kernels: int, bias: bool):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Linear(blocks, hidden // kernels, bias) for _ in range(kernels))
        self.out_1 = weight_norm(nn.Linear(hidden, hidden))
        self.out_2 = weight_norm(nn.Linear(hidden, 1))

    def forward(
        self, nodes: Float[Tensor, "c Q L b"], edges: Float[Tensor, "Q L L e"], mask: Bool[Tensor, "Q L"]
    ) -> Float[Tensor, "c Q"]:
        projected = linear(nodes, torch.cat([layer.get_parameter("weight") for layer in self.convolutions]))
        if edges.shape[3] == 1:
            gathered = edges[..., 0] @ projected
        else:
            by_kernel = projected.unflatten(3, (edges.shape[3], -1))
            gathered = torch.einsum("qije,cqjex->cqiex", edges, by_kernel).flatten(3)
        if self.convolutions[0].bias is not None:
            gathered = gathered + torch.cat([layer.get_parameter("bias") for layer in self.convolutions])
        numbers = self.out_2(self.out_1(gathered).tanh()).squeeze(3)
        return numbers.masked_fill(~mask, 0).sum(2) / mask.sum(1).clamp(min=1)


class GraphMatching(nn.Module):
    """The scores of GSMN, from fragments with edges."""

    pairs_apart = True

    def __init__(self, smooth: float, blocks: int, hidden: int, kernels: int):
        super().__init__()
        self.smooth, self.blocks = smooth, blocks
        # Only words have a bias, as in the authors' program: an unrelated argument turned it on.
        self.visual = StructureScores(blocks, hidden, kernels, bias=False)
        self.textual = StructureScores(blocks, hidden, kernels, bias=True)

    def forward(self, pairing: Pairing) -> Float[Tensor, "..."]:
        # Products, weights and the backward pass over them; for each node its cosines, and passes over what
        # is hidden.
        wide = 6 * self.blocks + 8 * self.textual.out_1.in_features
        return pairing.scored(self._score, products=12, regions=wide, words=wide)

    def attention(self, pairing: Pairing) -> dict[str, Float[Tensor, "N M"]]:
        return shown_attention(pairing, self.smooth)

    def _score(self, pairing: Pairing) -> Float[Tensor, "i T"]:
        return pairing.summed(("t2i", "i2t"), self._matched)

    def _matched(self, way: Direction, side: Pairing) -> Float[Tensor, "c Q"]:
        weights = softmax_attention(side.products(), side.contexts.mask, self.smooth).permute(0, 3, 2, 1)
        nodes = block_cosines(weights, side.contexts.vectors, side.queries.vectors, self.blocks)
        structure = self.textual if way == "t2i" else self.visual
        with torch.autocast(side.device.type, enabled=False):
            return structure(side.by_query(nodes), side.queries.edges, side.queries.mask)


@dataclass(frozen=True)
class GraphSettings(WordSettings):
    """Build either form of GSMN; `own_vectors` is what the authors' program does."""

    smooth: float = 20.0
    blocks: int = 16
    hidden: int = 32
    kernels: int = 8
    own_vectors: bool = False


def _gsmn(graph: GraphSettings, sparse: bool) -> CrossAttention:
    dim, blocks, hidden, kernels = graph.dim, graph.blocks, graph.hidden, graph.kernels
    if blocks < 1 or dim % blocks or kernels < 1 or hidden % kernels:
        raise SelhnError(
            f"dim={dim} does not divide into blocks={blocks}, or hidden={hidden} into kernels={kernels}: "
            "choose numbers that do"
        )
    image = RegionEncoder(graph.feature_dim, dim, RegionGraph(kernels, graph.own_vectors))
    text = WordEncoder(graph.num_words, graph.word_dim, dim, pool=WordGraph(graph.smooth, graph.own_vectors))
    model = CrossAttention(
        image, text, GraphMatching(graph.smooth, blocks, hidden, kernels), tokenizer=graph.tokenizer
    )
    model.side = {"boxes": True, "dependencies": False} if sparse else {"boxes": True}
    return model


_PAPER = Paper("Liu et al., CVPR 2020", "https://arxiv.org/abs/2004.00277")
_GSMN_NAMES = [
    *FRAGMENT_NAMES,
    (r"_match_G\.(graph_convolution_\d|[vt]GNN)\.", "_match_G."),
    (r"^t2i_match_G\.params$", ""),  # they cancel when the edges of words are normalised
    (r"^i2t_match_G\.(mean|precision)_", r"image.pool.\1_"),
    (r"^i2t_match_G\.", "head.visual."),
    (r"^t2i_match_G\.", "head.textual."),
    (r"\.conv_weights\.", ".convolutions."),
    (r"\.weight_g$", ".parametrizations.weight.original0"),
    (r"\.weight_v$", ".parametrizations.weight.original1"),
]


def _layout(sparse: bool) -> AuthorsLayout:
    return AuthorsLayout(
        _GSMN_NAMES,
        {**UNIT_VECTORS, "is_sparse": sparse},
        SMOOTH,
        ("img_enc.", "txt_enc.", "i2t_match_G.", "t2i_match_G."),
        {"own_vectors": True},
        axes=(
            ("blocks", "i2t_match_G.graph_convolution_1.conv_weights.0.weight", 1),
            ("blocks", "i2t_match_G.vGNN.conv_weights.0.weight", 1),
            ("hidden", "i2t_match_G.out_1.bias", 0),
        ),
        numbered={"kernels": r"i2t_match_G\.\w+\.conv_weights\.\d+"},
    )


@model(_PAPER, "cross-attention", official=_layout(sparse=False))
def gsmn_dense(graph: GraphSettings) -> CrossAttention:
    """GSMN (dense): every word is joined with all others; `own_vectors` is what the authors' program does."""
    return _gsmn(graph, sparse=False)


@model(_PAPER, "cross-attention", official=_layout(sparse=True))
def gsmn_sparse(graph: GraphSettings) -> CrossAttention:
    """GSMN (sparse): words are joined along a parse, if there is one; `own_vectors` as in gsmn_dense."""
    return _gsmn(graph, sparse=True)
