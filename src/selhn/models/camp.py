"""CAMP: Wang et al., Cross-Modal Adaptive Message Passing for Text-Image Retrieval, ICCV 2019.

Regions V and words W, which are not scaled to length 1, send messages to each other; the messages that a
side receives then attend to each other. Regions receive, with every softmax over the last axis:

    U = B W,  B = softmax((A W Q') (A W K')' / sqrt(d)) A,  A = softmax((V Q_V') (W K_W')' / sqrt(d))

Words receive Z = C V in the same way. The first stage scores the cosine of the mean of U and the mean of Z.
The later stages weight every region v and its message u = unit(U_v) with a gate, and sum the regions of the
pair:

    c = ReLU(F g [v; u]) + v,  g = sigmoid(v . u)
    x = unit(sum of p c),      p = softmax over regions of H ReLU(G c), the mean of several heads

The words give such a vector too, and the score is the sigmoid of an MLP of both.

This code makes no message, only the weights B and C. With a matrix per text in the middle, (A W Q') (A W K')'
is A (W Q' K W') A'. The rest follows: v . U_v = sum_l B_vl (v . w_l), |U_v|^2 = B_v W W' B_v', and
F [v; u] = F_1 v + F_2 u, where F_2 u is made of the F_2 w of all words. Padding is left out.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from selhn.models.builders import WordSettings
from selhn.models.cross_attention import CrossAttention, RegionEncoder, WordEncoder
from selhn.models.layouts import FRAGMENT_NAMES, AuthorsLayout
from selhn.models.table import Paper, model
from selhn.ops import Fragments, Pairing, real_or_all, unit
from selhn.ops.gpu import in_half_precision

# Bytes of fragments fused at a time, so that the passes over them stay in a CPU's cache.
CHUNK_BYTES = 2**22
EPSILON = 1e-8
# Above this, fragments are made shorter before products in float16.
LARGEST = 64.0

# Weights of all pairs of S items that send s fragments each, and R that receive r. If aligned, item s
# sends to item s alone, and R is 1.
Weights = Float[Tensor, "S R r s"]


class Messages(nn.Module):
    """What one side receives from the other; with `heads`, also how it is fused and summed."""

    def __init__(self, dim: int, heads: int | None):
        super().__init__()
        self.query, self.own_query, self.own_key = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.key = _draw(nn.Linear(dim, dim, bias=False))
        if heads is not None:
            self.fuse = _draw(nn.Linear(2 * dim, dim, bias=False))
            self.summary = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, heads))
            self.summary[2].bias.requires_grad_(False)  # a bias would add the same to all logits

    def of_senders(self) -> list[Float[Tensor, "d e"]]:
        """Matrices applied to senders: for the product with receivers, for the middle, and F_2 if any."""
        scale = self.key.out_features**-0.5
        first, middle = self.key.weight.T @ self.query.weight, self.own_query.weight.T @ self.own_key.weight
        return [scale * first, scale * middle, *self.of_fused()[1:]]

    def of_fused(self) -> list[Float[Tensor, "d e"]]:
        """F_1 and F_2."""
        return [half.T for half in self.fuse.weight.chunk(2, 1)] if hasattr(self, "fuse") else []

    def forward(
        self,
        logits: Weights,
        middle: Float[Tensor, "S s s"],
        sends: Bool[Tensor, "S s"],
        receives: Bool[Tensor, "_ _ r"],
    ) -> tuple[Weights, Weights]:
        """B, and A."""
        first = _softmax(logits, sends[:, None, None])
        second = first @ middle[:, None] @ first.transpose(2, 3)
        return _softmax(second, receives.unsqueeze(2)) @ first, first

    def fused(
        self, weights: Weights, dots: Weights, gram: Float[Tensor, "S s s"], sent: Float[Tensor, "S s d"],
        own: Float[Tensor, "_ _ r d"], of_own: Float[Tensor, "_ _ r d"], mask: Bool[Tensor, "_ _ r"],
    ) -> Float[Tensor, "S R d"]:  # fmt: skip
        """x, from `dots`, the products of both sides, and F_1 and F_2 of their fragments."""
        with torch.autocast(weights.device.type, enabled=False):
            lengths = ((weights @ gram[:, None]) * weights).sum(3).clamp(min=1e-30).sqrt() + EPSILON
            gates = ((weights * dots).sum(3) / lengths).sigmoid()
            scaled = weights * (gates / lengths)[..., None]
        own, of_own, sent, shrunk = _within_float16(own, of_own, sent)
        message = torch.bmm(scaled.flatten(1, 2), sent).view(*weights.shape[:3], -1)
        # In the precision of the products: tensors as wide as an embedding are read and written six times.
        own, of_own, gates = (part.to(message.dtype) for part in (own, of_own, gates[..., None]))
        fused = torch.addcmul(message, gates, of_own).relu() + own
        share = _softmax(self._logits(fused, shrunk, weights.dtype).transpose(2, 3), mask.unsqueeze(2))
        return unit((share.mean(2).to(fused.dtype)[..., None, :] @ fused).squeeze(2))

    def _logits(
        self, fused: Float[Tensor, "S R r d"], shrunk: Float[Tensor, ""] | None, dtype: torch.dtype
    ) -> Float[Tensor, "S R r h"]:
        """`H ReLU(G c)` of `c / shrunk`; the bias of H, which is the same for all, is left out then."""
        if shrunk is None:
            return self.summary(fused).to(dtype)
        first, last = self.summary[0], self.summary[2]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        return linear(linear(fused, first.weight, first.bias / shrunk).relu(), last.weight).to(dtype) * shrunk


class MessagePassing(nn.Module):
    """The logits of CAMP, or without `heads` the scores of its first stage."""

    pairs_apart = True

    def __init__(self, dim: int, heads: int | None, padded_length: int):
        super().__init__()
        self.padded_length = padded_length
        self.to_regions, self.to_words = Messages(dim, heads), Messages(dim, heads)
        self.gated = heads is not None
        if self.gated:
            self.out = nn.Sequential(_draw(nn.Linear(2 * dim, dim)), nn.ReLU(), _draw(nn.Linear(dim, 1)))

    def forward(self, pairing: Pairing) -> Float[Tensor, "..."]:
        num_regions, dim = pairing.contexts.vectors.shape[1:]
        with torch.autocast(pairing.device.type, enabled=False):
            pairing = self._prepared(pairing)
        # Products and weights of both directions, and fused fragments.
        wide = (8 if torch.is_grad_enabled() else 4) * dim if self.gated else 0
        with in_half_precision(pairing.device):
            return pairing.scored(self._scores, 16, regions=2 * num_regions + wide, words=wide)

    def attention(self, pairing: Pairing) -> dict[str, Float[Tensor, "N M"]]:
        """The first attention of words and regions: whose messages they receive."""
        pairing = self._prepared(pairing)
        _, of_words = self._received(pairing, self.to_words)
        _, of_regions = self._received(pairing.turned(), self.to_regions)
        return {"of_words": of_words[0, 0], "of_regions": of_regions[0, 0].T}

    def _prepared(self, pairing: Pairing) -> Pairing:
        """Fragments and all their products with weights, each computed once for all pairs."""

        def prepared(items: Fragments, sends: Messages, receives: Messages) -> Fragments:
            matrices = torch.cat([*sends.of_senders(), *receives.of_fused()[:1]], 1)
            return replace(items, vectors=torch.cat([items.vectors, items.vectors @ matrices], 2), gram=None)

        return Pairing(
            prepared(pairing.contexts, self.to_words, self.to_regions),
            prepared(pairing.queries, self.to_regions, self.to_words),
            pairing.aligned,
        )

    def _scores(self, pairing: Pairing) -> Float[Tensor, "i T"]:
        """Some images at a time."""
        num_regions, num_words = pairing.contexts.mask.shape[1], pairing.queries.mask.shape[1]
        width = self.to_words.key.in_features if self.gated else num_regions
        bytes_each = 4 * width * (num_regions + num_words)
        bytes_each *= 1 if pairing.aligned else len(pairing.queries)
        score = self._gated if self.gated else self._first_stage
        parts = [pairing.by_query(score(part)) for part in pairing.parts(bytes_each, CHUNK_BYTES)]
        return torch.cat(parts, 1 if pairing.aligned else 0)

    def _received(self, side: Pairing, messages: Messages, padding: int = 0) -> tuple[Weights, Weights]:
        """B and A: contexts send, queries receive.

        With `padding`, queries have one more place, which receives what padding does in the authors' program.
        """
        sent, mask = self._parts(side.contexts), side.queries.mask
        with torch.autocast(side.device.type, enabled=False):
            logits = self._products(side, sent[1])
            if padding:
                logits, mask = pad(logits, (0, 0, 0, padding)), pad(mask, (0, padding))
            return messages(logits, sent[2] @ sent[0].mT, side.contexts.mask, side.of_queries(mask))

    def _products(self, side: Pairing, senders: Float[Tensor, "S s d"]) -> Weights:
        """The product of every receiving fragment with every sending one."""
        receivers = self._parts(side.queries)[0]
        if side.aligned:
            return (receivers @ senders.mT)[:, None]
        matrix = receivers.flatten(0, 1) @ senders.flatten(0, 1).T
        return matrix.view(*receivers.shape[:2], *senders.shape[:2]).permute(2, 0, 1, 3)

    def _parts(self, items: Fragments) -> tuple[Float[Tensor, "n K d"], ...]:
        """What `_prepared` has joined."""
        return items.vectors.split(self.to_words.key.in_features, 2)

    def _first_stage(self, pairing: Pairing) -> Float[Tensor, "I t"]:
        images, texts = pairing.contexts, pairing.queries
        to_regions, _ = self._received(pairing.turned(), self.to_regions)
        to_words, _ = self._received(pairing, self.to_words, padding=1)
        with torch.autocast(pairing.device.type, enabled=False):
            dots = self._products(pairing.turned(), self._parts(texts)[0])
            number = texts.mask.sum(1, keepdim=True)
            # Official: the mean is over padding too, up to a fixed length.
            counts = torch.cat([texts.mask, (self.padded_length - number).clamp(min=0)], 1)
            counts = counts / number.clamp(min=self.padded_length)
            of_region = images.mask / images.mask.sum(1, keepdim=True).clamp(min=1)
            # The means of U and Z are sums of words and of regions with these weights.
            of_words = (pairing.of_queries(of_region.to(dots.dtype)).unsqueeze(2) @ to_regions).squeeze(2)
            of_regions = (pairing.of_queries(counts.to(dots.dtype)).unsqueeze(2) @ to_words).squeeze(2)
            dot = ((dots @ of_words[..., None]).squeeze(3) * pairing.exchanged(of_regions)).sum(2)
            lengths = [
                _length(*side) for side in ((of_words, self._parts(texts)), (of_regions, self._parts(images)))
            ]
            return pairing.exchanged(dot / lengths[0]) / lengths[1]

    def _gated(self, pairing: Pairing) -> Float[Tensor, "I t"]:
        turned = pairing.turned()
        with torch.autocast(pairing.device.type, enabled=False):
            dots = self._products(turned, self._parts(turned.contexts)[0])
        sides = (turned, self.to_regions, dots), (pairing, self.to_words, pairing.exchanged(dots).mT)
        both = []
        for side, messages, own_dots in sides:
            sent, own = self._parts(side.contexts), self._parts(side.queries)
            received = [side.of_queries(part) for part in (own[0], own[4], side.queries.mask)]
            weights, _ = self._received(side, messages)
            both.append(messages.fused(weights, own_dots, _gram(sent[0]), sent[3], *received))
        with torch.autocast(pairing.device.type, enabled=False):
            return self.out(torch.cat([pairing.exchanged(both[0]), both[1]], 2)).squeeze(2)


def _gram(vectors: Float[Tensor, "n K d"]) -> Float[Tensor, "n K K"]:
    with torch.autocast(vectors.device.type, enabled=False):
        return vectors @ vectors.mT


def _within_float16(
    own: Float[Tensor, "_ _ r d"], of_own: Float[Tensor, "_ _ r d"], sent: Float[Tensor, "S s d"]
) -> tuple[
    Float[Tensor, "_ _ r d"], Float[Tensor, "_ _ r d"], Float[Tensor, "S s d"], Float[Tensor, ""] | None
]:
    """The same, divided by a number that keeps their sums within float16, and that number; None in other formats.

    Fragments are as long as training makes them, and float16 ends at 65,504.
    """
    kind = own.device.type
    if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != torch.float16:
        return own, of_own, sent, None
    largest = torch.stack([part.detach().abs().amax() for part in (own, of_own, sent)]).amax()
    shrunk = (largest / LARGEST).clamp(min=1)
    return own / shrunk, of_own / shrunk, sent / shrunk, shrunk


def _length(
    shares: Float[Tensor, "S R s"], senders: tuple[Float[Tensor, "S s d"], ...]
) -> Float[Tensor, "S R"]:
    """|sum of shares times fragments|, plus a small constant."""
    return ((shares @ _gram(senders[0])) * shares).sum(2).clamp(min=1e-30).sqrt() + EPSILON


def _softmax(logits: Float[Tensor, "*K n"], mask: Bool[Tensor, "*#K n"]) -> Float[Tensor, "*K n"]:
    """Softmax over the real ones; over all if none is real."""
    return logits.masked_fill(~real_or_all(mask), -torch.inf).softmax(-1)


def _draw(layer: nn.Linear) -> nn.Linear:
    """Official: the bound of the weights is that of a square matrix, and the bias is zero."""
    bound = (3 / layer.weight.shape[0 if layer.out_features > 1 else 1]) ** 0.5
    nn.init.uniform_(layer.weight, -bound, bound)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


_PAPER = Paper("Wang et al., ICCV 2019", "https://arxiv.org/abs/1909.05506")
_CAMP_NAMES = [
    *FRAGMENT_NAMES,
    (r"^criterion\.sim\.(weighted_txt|img)_query_fc\.", r"head.to_regions.\1_query."),
    (r"^criterion\.sim\.(weighted_txt|txt)_key_fc\.", r"head.to_regions.\1_key."),
    (r"^criterion\.sim\.(weighted_img|txt)_query_fc\.", r"head.to_words.\1_query."),
    (r"^criterion\.sim\.(weighted_img|img)_key_fc\.", r"head.to_words.\1_key."),
    (r"\.weighted_(txt|img)_(query|key)\.", r".own_\2."),
    (r"\.(txt|img)_(query|key)\.", r".\2."),
    (r"^criterion\.sim\.(fc|final_reduce)_1\.", r"head.to_regions.\1."),
    (r"^criterion\.sim\.(fc|final_reduce)_2\.", r"head.to_words.\1."),
    (r"\.fc\.0\.", ".fuse."),
    (r"\.final_reduce\.linear\.", ".summary."),
    (r"^criterion\.sim\.fc_out\.0\.", "head.out.0."),
    (r"^criterion\.sim\.fc_out\.3\.", "head.out.2."),
]


def _layout(measure: str) -> AuthorsLayout:
    return AuthorsLayout(
        _CAMP_NAMES,
        {"no_imgnorm": True, "no_txtnorm": True, "measure": measure},
        parts=("img_enc.", "txt_enc.", "criterion.sim."),
        axes=(("heads", "criterion.sim.final_reduce_1.linear.2.weight", 0),),
        present={"gated": "criterion.sim.fc_1.0.weight"},
    )


@model(_PAPER, "cross-attention", official=_layout("gate_fusion_new"))
def camp(common: WordSettings, gated: bool = True, heads: int = 4, padded_length: int = 50) -> CrossAttention:
    """CAMP: gated messages between regions and words; without gates, its first stage."""
    image = RegionEncoder(common.feature_dim, common.dim, normed=False)
    text = WordEncoder(common.num_words, common.word_dim, common.dim, normed=False)
    head = MessagePassing(common.dim, heads if gated else None, padded_length)
    return CrossAttention(image, text, head, sigmoid=gated, tokenizer=common.tokenizer)


@model(_PAPER, "cross-attention", official=_layout("cross_attention_new"))
def camp_stage1(common: WordSettings, padded_length: int = 50) -> CrossAttention:
    """The first stage of CAMP: the cosine of the mean messages."""
    return camp(**vars(common), gated=False, padded_length=padded_length)
