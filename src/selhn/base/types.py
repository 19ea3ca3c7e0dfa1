"""The axes of every tensor in selhn, and the small types that packages share.

Signatures carry their axes with jaxtyping, for example `scores: Float[Tensor, "I T"]`:

    B     pairs in a batch; pair i is image i with text i
    I, T  images and texts that are scored against each other
    M     regions of an image            N  tokens of a text
    F     width of a region feature      d  width of the joint embedding
    k     hits returned for a query      *K  leading axes, such as the steps of a model that scores in steps

`scores` is always `[image, text]`. The tests check the annotations; otherwise they cost nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float32, Int, Int8, Shaped
from torch import Tensor

from selhn.base.ranks import Shares

Reduction = Literal["mean", "sum", "none"]
"""How a loss combines its 2B anchors."""

Variant = Literal["hinge", "nca"]
"""How a triplet becomes a number: `[s_n - s_p + margin]+`, or `-log softmax(s_p, s_n)[0]`."""

FeaturePrecision = Literal["float32", "float16", "bfloat16", "int8"]
"""Storage precision of features on a device; int8 has one scale per region."""

StoredPrecision = Literal["float32", "float16", "int8"]
"""Storage precision of vectors and features in a file; int8 has one scale per row: `row = codes * scale`."""


def to_int8(rows: Float[Tensor, "*n d"]) -> tuple[Int8[Tensor, "*n d"], Float32[Tensor, "*n"]]:
    """Codes and scales; the error is at most 1/254 of the row's largest entry, which has code 127."""
    rows = rows.float()
    scale = (rows.abs().amax(-1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (rows / scale[..., None]).round().to(torch.int8), scale


@dataclass(frozen=True)
class SideInput:
    """An input that a few models need besides regions and tokens; a row of `SIDE_INPUTS`."""

    of: Literal["images", "texts"]
    axes: str
    """Shape for one image or text."""
    dtype: torch.dtype | None
    """Type of its numbers; None keeps that of the file."""
    words: str
    """What it is, and where it comes from, for messages."""


SIDE_INPUTS: Mapping[str, SideInput] = {
    "boxes": SideInput(
        "images", "M 4", torch.float32, "x1, y1, x2, y2 of regions as shares of width and height, {split}_boxes.npy"
    ),
    "adjacency": SideInput(
        "images", "M M", torch.bool, "which regions are neighbours, {split}_adjacency.npy, or made from boxes"
    ),
    "dependencies": SideInput(
        "texts", "E 2", torch.int32,
        "a parse: head and dependent, words counted from 1 (the root is 0, padding -1), {split}_dependencies.npy",
    ),
    "concepts": SideInput("texts", "C", None, "how much each concept is in a text, {split}_concepts.npy"),
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """B pairs of an image and a text; masks are True for real regions and tokens."""

    regions: Float[Tensor, "B M F"]
    region_mask: Bool[Tensor, "B M"]
    tokens: Int[Tensor, "B N"]
    token_mask: Bool[Tensor, "B N"]
    image_ids: Int[Tensor, " B"]

    side: Mapping[str, Shaped[Tensor, "B ..."]] = field(default_factory=dict)
    """Side inputs by name, if the model takes any."""

    def to(self, device: torch.device | str) -> "Batch":
        return self.each(lambda tensor: tensor.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with every tensor changed."""
        own = {f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "side"}
        return replace(self, **own, side={name: change(tensor) for name, tensor in self.side.items()})


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision widened, which changes no comparison; float32 and float64 unchanged."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


ALIGNED = 16
"""Kernels read embeddings whose width is a multiple of this."""


@dataclass(frozen=True)
class Products:
    """The scores `images @ texts.T` of a batch, kept as two factors: the B x B matrix is never formed.

    With `shares` these are the embeddings of this process, and the batch is that of all processes.
    """

    images: Float[Tensor, "b d"]
    texts: Float[Tensor, "b d"]
    shares: Shares | None = None

    def detach(self) -> "Products":
        return replace(self, images=self.images.detach(), texts=self.texts.detach())

    def to(self, dtype: torch.dtype) -> "Products":
        return replace(self, images=self.images.to(dtype), texts=self.texts.to(dtype))

    def __len__(self) -> int:
        return len(self.images) if self.shares is None else sum(self.shares.sizes)

    @property
    def shape(self) -> torch.Size:
        """That of the matrix."""
        return torch.Size([len(self)] * 2)

    @property
    def device(self) -> torch.device:
        return self.images.device

    def mul(self, scale: Float[Tensor, ""]) -> "Products":
        """All scores times a number."""
        return replace(self, images=self.images * scale.to(self.images.dtype))

    def add(self, shift: Float[Tensor, ""]) -> "Products":
        """All scores plus a number: one more column of both embeddings."""
        column = self.images.new_zeros(len(self.images), ALIGNED)
        column[:, 0] = 1
        images = torch.cat([self.images, column * shift.to(self.images.dtype)], dim=1)
        return replace(self, images=images, texts=torch.cat([self.texts, column], dim=1))


@dataclass(frozen=True)
class Match:
    """The scores of a batch, and further losses by name (a captioner's, say) that the loop adds."""

    scores: Float[Tensor, "*K B B"] | Products
    aux: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)


@dataclass(frozen=True)
class Attention:
    """Attention between the words of one text and the regions of one image; rows are words, columns regions.

    A model has one direction or both.
    """

    score: float
    of_words: Float[Tensor, "N M"] | None = None
    """Attention of each word over the regions: rows sum to 1 (t2i)."""
    of_regions: Float[Tensor, "N M"] | None = None
    """Attention of each region over the words: columns sum to 1 (i2t)."""
    kept: Float[Tensor, " N"] | None = None
    """The share of each word in the score, if the model weights words; the remainder is the whole text's."""
    words: tuple[str, ...] = ()
    """The tokens the model reads; some only mark where a text begins and ends."""
    is_word: tuple[bool, ...] = ()
    """Which tokens are real words, not such marks."""
    boxes: Float[Tensor, "M 4"] | None = None
    """x1, y1, x2, y2 of the regions as a share of the image's width and height, if they are known."""

    @property
    def weights(self) -> Float[Tensor, "N M"]:
        """Attention of words over regions, or of regions over words if the model has only that."""
        weights = self.of_regions if self.of_words is None else self.of_words
        assert weights is not None
        return weights
