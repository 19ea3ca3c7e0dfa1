"""The axes of every tensor in selhn, and the small things that cross from one folder to another.

Signatures carry their axes with jaxtyping, for example `scores: Float[Tensor, "I T"]`:

    B     pairs in a batch; pair i is image i with text i
    I, T  images and texts that are scored against each other
    M     regions of an image            N  tokens of a text
    F     width of a region feature      d  width of the joint embedding
    k     hits returned for a query      *K  any leading axes, such as the steps of a model that scores in steps

`scores` is always `[image, text]`. The annotations are checked while the tests run and cost nothing otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
"""What a loss does with its 2B anchors."""

Variant = Literal["hinge", "nca"]
"""How a triplet becomes a number: `[s_n - s_p + margin]+`, or the softmax form `-log softmax(s_p, s_n)[0]`."""


@dataclass(frozen=True)
class Batch:
    """B pairs of an image and a text; masks are True where there is something."""

    regions: Float[Tensor, "B M F"]
    region_mask: Bool[Tensor, "B M"]
    tokens: Int[Tensor, "B N"]
    token_mask: Bool[Tensor, "B N"]
    image_ids: Int[Tensor, " B"]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch on a device."""
        return Batch(*(getattr(self, f.name).to(device, non_blocking=non_blocking) for f in fields(self)))


@dataclass(frozen=True)
class Match:
    """What a model makes of a batch: scores, and further losses by name (a captioner's, say) that the loop adds."""

    scores: Float[Tensor, "*K B B"]
    aux: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)
