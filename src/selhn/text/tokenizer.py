"""What a model needs to read sentences, whichever way they are cut into tokens."""

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.names import require_texts


@dataclass(frozen=True)
class TokenKinds:
    """Which of the V token ids may be changed, and which belong to the token before them."""

    special: Bool[Tensor, " V"]
    """Padding, start, end and mask: never changed by augmentation."""
    inner: Bool[Tensor, " V"]
    """Pieces that continue a word."""
    ordinary: Int[Tensor, " W"]
    """Ids that may replace a word."""
    _copies: dict[torch.device, "TokenKinds"] = field(default_factory=dict, repr=False, compare=False)

    def on(self, device: torch.device) -> "TokenKinds":
        """A copy on a device, made once, so that a training step does not wait for the host."""
        if device not in self._copies:
            special, inner, ordinary = (kind.to(device) for kind in (self.special, self.inner, self.ordinary))
            self._copies[device] = TokenKinds(special, inner, ordinary)
        return self._copies[device]


@runtime_checkable
class Tokenizer(Protocol):
    """What a model needs to read sentences; it is saved with the model."""

    size: int
    """V, the number of token ids."""
    pad_id: int
    mask_id: int | None
    """The id of the mask token; None if the vocabulary has none."""
    kinds: TokenKinds

    def encode(self, texts: list[str]) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
        """Ids and mask (True = token), padded to the longest text."""

    def spell(self, ids: list[int]) -> list[str]:
        """The token of each id, as readable text."""

    def save(self, folder: Path) -> None:
        """Write the files that `load_tokenizer` reads."""


def check_texts(texts: list[str]) -> None:
    """`require_texts`, and at least one."""
    require_texts(texts)
    if len(texts) == 0:
        raise SelhnError("no texts: give at least one sentence")


def decodable(texts: list[str]) -> list[str]:
    """The texts, checked, for another library: it refuses half a character (a lone surrogate), as JSON may contain."""
    check_texts(texts)
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


def padded(rows: list[list[int]], pad_id: int) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
    """Ids of texts as one tensor, and which of them are tokens."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    tokens = torch.full(mask.shape, pad_id, dtype=torch.int64)
    tokens[mask] = torch.from_numpy(
        np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
    )
    return tokens, mask
