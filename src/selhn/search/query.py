"""A question to an index, and the vectors by which it is answered."""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import require_kind
from selhn.search.encoding import encode_queries_of_images, encode_queries_of_text
from selhn.search.items import Array, Kind, as_numbers
from selhn.search.where import Where
from selhn.towers import AbstractTowers

Picture: TypeAlias = Array | str | Path | Image
"""The regions (M, F) of an image, or its vector (d,); or a picture file or PIL image, if the towers of the index take
pictures."""
_PICTURE_NAME = re.compile(r"\S+\.(?:jpe?g|png|gif|webp|tiff?|bmp|heic|avif)", re.IGNORECASE)
MODALITY: Mapping[str, Kind] = {"text": "text", "image": "image", "like": "image", "without": "text"}
WEIGHTS = {"without": -0.5}
"""Default weights of the parts for which it is not 1."""
_MINUS = re.compile(r"(?:^|(?<=\s))-(?=[^\W\d_])(\S+)")


@dataclass(frozen=True, eq=False)
class Query:
    """A text, an image, an item of the index, or several of these at once."""

    text: str | None = None
    image: Picture | None = None
    like: str | None = None
    """The id of an item, to search with its image."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """How much each part counts: {"text": 2, "like": -0.5}. By default 1, `without` -0.5. Only their ratios matter."""
    where: Where | None = None
    """A filter on metadata, see `where.py`."""
    find: Kind = "image"
    """Whether images or captions are the answers."""
    k: int = 5
    """Number of answers."""
    without: str | None = None
    """A text that answers should not be about; its weight is -0.5."""

    def __post_init__(self) -> None:
        require_kind("k", self.k, int)
        if self.k < 1:
            raise SelhnError(f"k must be at least 1, got {self.k}")
        if self.find not in ("image", "text"):
            raise SelhnError(f'find must be "image" or "text", got {self.find!r}')
        if self.image is not None and not isinstance(self.image, Tensor | np.ndarray | str | Path | Image):
            raise SelhnError(
                f"the query is a {type(self.image).__name__}: give a text, image= with a file, a PIL image or regions "
                "(M, F), a Query, or a list of them"
            )

    @classmethod
    def minus(cls, words: str) -> "Query":
        """A query from words as people type them: in "dog -snow", snow is not wanted."""
        unwanted = _MINUS.findall(words)
        text = " ".join(_MINUS.sub(" ", words).split())
        return cls(text or None, without=" ".join(unwanted)) if unwanted else cls(words)

    @classmethod
    def of(
        cls,
        query: "Picture | Query",
        k: int | None = None,
        find: Kind | None = None,
        where: Where | None = None,
    ) -> "Query":
        """A query from a text, an image, or another query, with `k`, `find` and `where` if given.

        A string is a picture if it is the path of a file; pass untrusted texts as `Query(text=...)`.
        """
        if not isinstance(query, Query):
            query = cls(text=query) if isinstance(query, str) and not names_file(query) else cls(image=query)
        given: dict[str, Any] = {"k": k, "find": find, "where": where}
        return replace(query, **{name: value for name, value in given.items() if value is not None})

    @property
    def shares(self) -> dict[str, float]:
        """The weights of the parts that the query has; their absolute values add up to 1."""
        parts = [part for part in MODALITY if getattr(self, part) is not None]
        if parts == ["without"]:
            raise SelhnError(
                f'the query only says what is not wanted ({self.without}): add what to look for, such as "dog -snow"'
            )
        if not parts:
            raise SelhnError("the query is empty: give a text, an image, or the id of an item")
        unknown = [name for name in self.weights if name not in parts]
        if unknown:
            raise SelhnError(
                f"there is a weight for {unknown[0]!r} but no such part: this query has {', '.join(parts)}"
            )
        weights = {part: float(self.weights.get(part, WEIGHTS.get(part, 1.0))) for part in parts}
        total = sum(map(abs, weights.values()))
        if not math.isfinite(total) or total == 0:
            raise SelhnError(f"the weights are {weights}: give finite numbers that are not all 0")
        return {part: weight / total for part, weight in weights.items()}


Asked: TypeAlias = Picture | Query
"""What can be asked: a string is a text, or the path of a picture."""


def names_file(words: str) -> bool:
    """Whether a string is the path of a picture. A word that can only be a missing path is an error."""
    path = Path(words).expanduser() if words.startswith("~") else Path(words)
    if path.suffix and os.path.isfile(path):
        return True
    if _PICTURE_NAME.fullmatch(words):
        raise NotFound(
            f"there is no file {words}: check the path, or write text={words!r} if it is a sentence"
        )
    return False


@dataclass(frozen=True, eq=False)
class QueryVectors:
    """Queries as vectors: per part a vector and a weight for each query, 0 if a query has no such part."""

    towers: AbstractTowers
    vectors: Mapping[str, Float[Tensor, "Q d"]]
    weights: Mapping[str, Float[Tensor, " Q"]]

    def __len__(self) -> int:
        return len(next(iter(self.vectors.values())))

    @cached_property
    def products(self) -> Float[Tensor, "Q d"] | None:
        """One vector per query whose products are the scores, if the towers score by products."""
        if not self.towers.is_product:
            return None
        return torch.stack([self.weights[part][:, None] * own for part, own in self.vectors.items()]).sum(0)

    def score(self, block: Float[Tensor, "n d"], kind: Kind) -> Float[Tensor, "Q n"]:
        """The score of the towers across modalities, the product of vectors within one; parts are added up."""
        if self.products is not None:
            return self.products @ block.T
        scores = []
        for part, vectors in self.vectors.items():
            if MODALITY[part] == kind:
                found = vectors @ block.T
            elif kind == "image":
                found = self._across(block, vectors).T
            else:
                found = self._across(vectors, block)
            scores.append(self.weights[part][:, None] * found)
        return torch.stack(scores).sum(0)

    def _across(self, images: Float[Tensor, "I d"], texts: Float[Tensor, "T d"]) -> Float[Tensor, "I T"]:
        return torch.from_numpy(self.towers.score(as_numbers(images), as_numbers(texts))).to(images.device)


def encode_queries(
    towers: AbstractTowers,
    queries: Sequence[Query],
    device: torch.device,
    encode_like: Callable[[list[str]], Float[Tensor, "n d"]],
) -> QueryVectors:
    """The vectors of queries; texts are encoded together, and so are images. `encode_like` looks up items."""
    encode: Mapping[str, Callable[[list[Any]], Array]] = {
        "text": partial(encode_queries_of_text, towers),
        "image": partial(encode_queries_of_images, towers),
        "like": encode_like,
        "without": partial(encode_queries_of_text, towers),
    }
    shares = [query.shares for query in queries]
    vectors, weights = {}, {}
    for part, encode_part in encode.items():
        rows = [row for row, own in enumerate(shares) if part in own]
        if rows:
            encoded = torch.as_tensor(encode_part([getattr(queries[row], part) for row in rows])).to(device)
            vectors[part] = encoded.new_zeros(len(queries), encoded.shape[1])
            vectors[part][rows] = encoded
            weights[part] = torch.tensor([own.get(part, 0.0) for own in shares], device=device)
    return QueryVectors(towers, vectors, weights)
