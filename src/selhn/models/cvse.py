"""CVSE: Wang et al., Consensus-Aware Visual-Semantic Embedding for Image-Text Matching, ECCV 2020.

    instance  = unit(sum_k p_k x_k)         over regions or words, p by self-attention as in SGRAF
    g         = unit(A leaky(A e W1) W2)    the concepts: words e that often occur together are neighbours in A
    w         = softmax_c(smooth W (tanh(BN(W3 g_c)) * tanh(BN(W4 instance))))
    consensus = unit(sum_c w_c g_c)         for a text, w is mixed with softmax(smooth label) of its words
    fused     = unit(a instance + (1 - a) consensus)
    score     = 0.95 fused . fused + 0.05 consensus . consensus

It is trained on three matrices of scores, fused, instance and consensus, weighted 3 : 5 : 1, and on the
distance of the concepts of a text from those of its image.
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from selhn.base.errors import SelhnError
from selhn.base.types import Batch, Match
from selhn.models.builders import WordSettings
from selhn.models.cross_attention import RegionEncoder, SelfAttentionPool, WordEncoder
from selhn.models.layouts import GRU_NAMES, UNIT_VECTORS, AuthorsLayout, Names
from selhn.models.matcher import (
    AbstractMatcher,
    RegionMask,
    Regions,
    TokenMask,
    Tokens,
    all_real,
    dot_scores,
    taken_side,
)
from selhn.models.table import Paper, model
from selhn.ops import side_by_side, unit
from selhn.text.concept_graph import ConceptGraph
from selhn.text.word_vectors import read_word_vectors

CONSENSUS_SHARE = 0.05
"""Share of the consensus in a score; the rest comes from the fused vectors."""
LEVEL_WEIGHTS = {"fused": 3, "instance": 5, "consensus": 1}
"""How many times the scores of each kind of vector count in training."""
DISTANCE_WEIGHT = 2.0
TRAIN_ALPHA = 0.85

Concepts = Float[Tensor, "C d"]


class Levels(NamedTuple):
    """Images or texts: their instance vectors, consensus vectors, and weights of the concepts."""

    instance: Float[Tensor, "n d"]
    consensus: Float[Tensor, "n d"]
    weights: Float[Tensor, "n C"]

    def fused(self, alpha: float) -> Float[Tensor, "n d"]:
        return unit(alpha * self.instance + (1 - alpha) * self.consensus)


class ConceptBasis(nn.Module):
    """The vectors of the concepts: two graph convolutions of their word vectors, which are not trained."""

    def __init__(self, adjacency: Float[Tensor, "C C"], inputs: Float[Tensor, "C e"], dim: int):
        super().__init__()
        self.adjacency: Tensor
        self.inputs: Tensor
        self.register_buffer("adjacency", adjacency)
        self.register_buffer("inputs", inputs)
        hidden = max(1, dim // 2)
        # Official: uniform, with a bound given by the number of outputs.
        self.first = nn.Parameter(torch.empty(inputs.shape[1], hidden).uniform_(-1, 1) / math.sqrt(hidden))
        self.second = nn.Parameter(torch.empty(hidden, dim).uniform_(-1, 1) / math.sqrt(dim))

    def forward(self) -> Concepts:
        degree = self.adjacency.sum(1).rsqrt()
        graph = (self.adjacency * degree).T * degree
        hidden = leaky_relu(graph @ (self.inputs @ self.first), 0.2)
        return unit(graph @ (hidden @ self.second))


class Consensus(nn.Module):
    """The weight of each concept for images, or for texts."""

    def __init__(self, dim: int):
        super().__init__()
        self.of_concept, self.of_item = (
            nn.Sequential(nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.Tanh()) for _ in range(2)
        )
        self.last = nn.Linear(dim, 1)
        for bias in (self.of_concept[0].bias, self.of_item[0].bias, self.last.bias):
            assert isinstance(bias, nn.Parameter)
            bias.requires_grad_(False)  # a norm or a softmax cancels it; published weights have it

    def forward(self, items: Float[Tensor, "n d"], concepts: Concepts) -> Float[Tensor, "n C"]:
        """`W (f(g_c) * h(x))` for all concepts and items as one product, with W multiplied into the items."""
        return (self.of_item(items) * self.last.weight) @ self.of_concept(concepts).T + self.last.bias


class CVSE(AbstractMatcher):
    """Instance and consensus vectors of images and texts, over one shared set of concepts."""

    is_embedding = True
    side = {"concepts": False}  # noqa: RUF012

    def __init__(
        self,
        common: WordSettings,
        image: RegionEncoder,
        text: WordEncoder,
        concepts: ConceptBasis,
        concept_of_word: Int[Tensor, " V"],
        label_ratio: float,
        fuse_alpha: float,
        smooth: float,
    ):
        super().__init__(common.tokenizer)
        self.image, self.text = image, text
        self.image_consensus, self.text_consensus = Consensus(common.dim), Consensus(common.dim)
        self.concepts = concepts
        self.concept_of_word: Tensor
        self.register_buffer("concept_of_word", concept_of_word)
        self.label_ratio, self.fuse_alpha, self.smooth = label_ratio, fuse_alpha, smooth
        num_concepts, concept_dim = concepts.inputs.shape
        self.settings = dict.fromkeys(("concept_graph", "concept_inputs", "word_vectors"))  # in the weights
        sizes = {"num_concepts": num_concepts, "concept_dim": concept_dim}
        self.settings |= {"vocab_size": common.num_words, **sizes}
        self.watched = {"image": image, "text": text, "image_fc": image.fc, "text_last": text.words.rnn}

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None) -> Float[Tensor, "I d2"]:
        return self._joined(self.image_levels(regions, region_mask, self.concepts()))

    def encode_texts(
        self,
        tokens: Tokens,
        token_mask: TokenMask | None = None,
        concepts: Shaped[Tensor, "T C"] | None = None,
    ) -> Float[Tensor, "T d2"]:
        """`concepts` are 1 for those that a text has; without them they are found by its words."""
        return self._joined(self.text_levels(tokens, token_mask, concepts, self.concepts()))

    def forward(self, batch: Batch) -> Match:
        """In training, the scores of each kind of vector, repeated by its weight."""
        images, texts = self._levels(batch)
        if not self.training:
            return Match(self.score(self._joined(images), self._joined(texts)))
        # Official: both programs train with 0.85; that for COCO evaluates with 0.90.
        pairs = {
            "fused": (images.fused(TRAIN_ALPHA), texts.fused(TRAIN_ALPHA)),
            "instance": (images.instance, texts.instance),
            "consensus": (images.consensus, texts.consensus),
        }
        scores = [dot_scores(*pairs[level]) for level, weight in LEVEL_WEIGHTS.items() for _ in range(weight)]
        return Match(
            torch.stack(scores), {"concepts": DISTANCE_WEIGHT * distance(texts.weights, images.weights)}
        )

    def image_levels(self, regions: Regions, mask: RegionMask | None, concepts: Concepts) -> Levels:
        instance = self.image(regions, all_real(regions, mask)).whole
        return self._level(instance, self._weights(self.image_consensus(instance, concepts)), concepts)

    def text_levels(
        self, tokens: Tokens, mask: TokenMask | None, labels: Tensor | None, concepts: Concepts
    ) -> Levels:
        mask = all_real(tokens, mask)
        instance = self.text(tokens, mask).whole
        labels = self.labels_of(tokens, mask) if labels is None else labels
        if labels.shape != (len(tokens), len(concepts)):
            raise SelhnError(
                f"the concepts of texts have shape {tuple(labels.shape)} but the model has {len(concepts)}: "
                "give it the graph they were made with, model.concept_graph=concepts.json"
            )
        own, known = self._weights(self.text_consensus(instance, concepts)), self._weights(labels)
        return self._level(instance, self.label_ratio * known + (1 - self.label_ratio) * own, concepts)

    def labels_of(self, tokens: Tokens, mask: TokenMask) -> Float[Tensor, "T C"]:
        """1 for the concepts that the words of a text belong to."""
        none = len(self.concepts.inputs)
        found = self.concept_of_word[tokens.long()].masked_fill(~mask, none)
        labels = torch.zeros(len(tokens), none + 1, device=tokens.device, dtype=self.concepts.inputs.dtype)
        return labels.scatter(1, found, 1.0)[:, :none]

    def _levels(self, batch: Batch) -> tuple[Levels, Levels]:
        concepts = self.concepts()
        labels = taken_side(self, batch.side, "texts").get("concepts")
        return side_by_side(
            lambda: self.image_levels(batch.regions, batch.region_mask, concepts),
            lambda: self.text_levels(batch.tokens, batch.token_mask, labels, concepts),
        )

    def _weights(self, logits: Tensor) -> Float[Tensor, "n C"]:
        return (self.smooth * logits.to(self.concepts.inputs.dtype)).softmax(1)

    def _level(
        self, instance: Float[Tensor, "n d"], weights: Float[Tensor, "n C"], concepts: Concepts
    ) -> Levels:
        return Levels(instance, unit(weights @ concepts), weights)

    def _joined(self, levels: Levels) -> Float[Tensor, "n d2"]:
        """One unit vector with parts scaled by the roots of their shares: a score is a dot product."""
        shares = (1 - CONSENSUS_SHARE, levels.fused(self.fuse_alpha)), (CONSENSUS_SHARE, levels.consensus)
        return torch.cat([math.sqrt(share) * part for share, part in shares], 1)


def distance(texts: Float[Tensor, "B C"], images: Float[Tensor, "B C"]) -> Float[Tensor, ""]:
    """`sum t log(t / v)` over concepts and pairs: how far images are from the concepts of their texts."""
    tiny = torch.finfo(images.dtype).tiny
    return (torch.xlogy(texts, texts) - texts * images.clamp(min=tiny).log()).sum()


_PAPER = Paper("Wang et al., ECCV 2020", "https://arxiv.org/abs/2007.08883")
_CVSE_NAMES: Names = [
    *GRU_NAMES,
    (r"^(C_GCN\.(adj_O_|joint_att_emb)|\w+\.(fc\d|embedding_2_2\.)).*", ""),  # not used, or there twice
    (r"^img_enc\.", "image."),
    (r"^txt_enc\.", "text.words."),
    (r"^V_self_atten_enhance\.", "image.pool."),
    (r"^T_self_atten_enhance\.", "text.pool."),
    (r"(pool\.)embedding_1\.", r"\1local."),
    (r"(pool\.)embedding_2\.", r"\1mean."),
    (r"(pool\.)embedding_3\.0\.", r"\1common."),
    (r"^V_consensus_level_embedding\.", "image_consensus."),
    (r"^T_consensus_level_embedding\.", "text_consensus."),
    (r"(consensus\.)embedding_1\.", r"\1of_concept."),
    (r"(consensus\.)embedding_2\.", r"\1of_item."),
    (r"(consensus\.)embedding_3\.0\.", r"\1last."),
    (r"^C_GCN\.adj_all$", "concepts.adjacency"),
    (r"^C_GCN\.gc1\.weight$", "concepts.first"),
    (r"^C_GCN\.gc2\.weight$", "concepts.second"),
    (r"^concept_inputs$", "concepts.inputs"),
]
_CVSE_PARTS = (
    "V_self_atten_enhance.", "T_self_atten_enhance.", "V_consensus_level_embedding.", "T_consensus_level_embedding.",
    "C_GCN.", "Multi_feature_fusing.",
)  # fmt: skip
_LAYOUT = AuthorsLayout(
    _CVSE_NAMES,
    {**UNIT_VECTORS, "use_BatchNorm": True, "activation_type": "tanh", "feature_fuse_type": "weight_sum"},
    {"Concept_label_ratio": ("label_ratio", float)},
    parts=("img_enc.", "txt_enc.", *_CVSE_PARTS),
    unsaved=("concepts.inputs", "concept_of_word"),
    needed={"concepts.inputs": "concept_inputs"},
    axes=(
        ("num_regions", "V_self_atten_enhance.embedding_1.1.weight", 0),
        ("num_concepts", "C_GCN.adj_all", 0),
        ("concept_dim", "C_GCN.gc1.weight", 0),
    ),
)


@model(_PAPER, official=_LAYOUT)
def cvse(
    common: WordSettings,
    concept_graph: str | Path | ConceptGraph | None = None,
    concept_inputs: Tensor | None = None,
    word_vectors: str | Path | None = None,
    num_concepts: int = 300,
    concept_dim: int | None = None,
    num_regions: int = 36,
    label_ratio: float = 0.35,
    fuse_alpha: float = 0.85,
    smooth: float = 10.0,
    dropout: float = 0.4,
) -> CVSE:
    """CVSE; `selhn data concepts` writes a graph, and training builds one from its captions if none is given.

    `word_vectors` (GloVe, as text) initialise the words and the concepts; without them
    both are random. `concept_inputs` are vectors of the concepts. For COCO the authors use 0.40 and 0.90.
    """
    graph = (
        ConceptGraph.read(Path(concept_graph)) if isinstance(concept_graph, (str, Path)) else concept_graph
    )
    num_concepts = num_concepts if graph is None else len(graph.words)
    concept_dim = concept_dim or common.word_dim
    inputs = unit(torch.randn(num_concepts, concept_dim))
    image = RegionEncoder(common.feature_dim, common.dim, SelfAttentionPool(common.dim, dropout, num_regions))
    pool = SelfAttentionPool(common.dim, dropout, unit_mean=True)
    text = WordEncoder(common.num_words, common.word_dim, common.dim, dropout, pool)
    concept_of_word = torch.full((common.num_words,), num_concepts)
    if graph is not None and common.tokenizer is not None:
        ids = {word: concept for concept, forms in enumerate(graph.words) for word in forms}
        spelled = common.tokenizer.spell(list(range(common.num_words)))
        concept_of_word = torch.tensor([ids.get(word, num_concepts) for word in spelled])
    if word_vectors is not None:
        vectors, found = common.vectors_from(word_vectors, common.word_dim)
        with torch.no_grad():
            text.words.embed.weight[found] = vectors[found]
        if graph is not None and concept_dim == common.word_dim:
            vectors, found = read_word_vectors(word_vectors, [forms[0] for forms in graph.words], concept_dim)
            inputs[found] = vectors[found]
    if concept_inputs is not None:
        inputs = torch.as_tensor(concept_inputs, dtype=inputs.dtype)
        if inputs.shape != (num_concepts, concept_dim):
            raise SelhnError(
                f"concept_inputs have shape {tuple(inputs.shape)}: give ({num_concepts}, {concept_dim})"
            )
    adjacency = torch.eye(num_concepts) if graph is None else graph.adjacency()
    concepts = ConceptBasis(adjacency, inputs, common.dim)
    return CVSE(common, image, text, concepts, concept_of_word, label_ratio, fuse_alpha, smooth)
