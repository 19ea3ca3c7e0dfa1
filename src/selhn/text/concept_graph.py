"""Concepts: words that occur in many captions, and how often two of them occur in the same caption."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import Damaged
from selhn.base.files import write_whole
from selhn.base.untrusted import read_json

CONCEPTS_FILE = "concepts.json"
MOST_CONCEPTS = 10_000
"""Largest number of concepts: a graph stores a count for every pair."""


@dataclass(frozen=True)
class ConceptGraph:
    """C concepts, each a word in its forms, the most frequent form first."""

    words: tuple[tuple[str, ...], ...]
    counts: Float[Tensor, " C"]
    """Number of captions that contain each concept."""
    together: Float[Tensor, "C C"]
    """Number of captions that contain both concepts; 0 on the diagonal."""

    def adjacency(self, threshold: float = 0.3) -> Float[Tensor, "C C"]:
        """Which concepts follow from which (Wang et al., CVSE, equations 2 and 3), with 1 on the diagonal.

        p = together / counts of the row;  q = 5^(p - 0.02) - 5^(-0.02);  entries of a column with q >= 0.3
        share 0.25.
        """
        share = self.together.double() / self.counts.double().clamp(min=1)[:, None]
        linked = (5.0 ** (share - 0.02) - 5.0**-0.02 >= threshold).double()
        linked = linked * 0.25 / (linked.sum(0) + 1e-6)
        return (linked + torch.eye(len(linked), dtype=linked.dtype)).float()

    def write(self, path: Path) -> None:
        """A JSON file that a person can read and shorten."""
        words = ",\n  ".join(json.dumps(forms, ensure_ascii=False) for forms in self.words)
        rows = ",\n  ".join(json.dumps(row) for row in self.together.int().tolist())
        counts = json.dumps(self.counts.int().tolist())
        write_whole(path, f'{{"words": [\n  {words}],\n "counts": {counts},\n "together": [\n  {rows}]}}\n')

    @classmethod
    def read(cls, path: Path) -> "ConceptGraph":
        content = read_json(path)
        lists = (content.get(name) for name in ("words", "counts", "together"))
        words, counts, together = (value if isinstance(value, list) else [] for value in lists)
        fits = 0 < len(words) <= MOST_CONCEPTS and all(map(_are_forms, words))
        if not fits or not _are_counts(counts, len(words)):
            raise Damaged(f"{path} has no concept words and counts: create it again with selhn data concepts")
        if len(together) != len(words) or not all(_are_counts(row, len(words)) for row in together):
            raise Damaged(f"{path}: together needs {len(words)} rows of {len(words)} counts, one per concept")
        forms = [word for own in words for word in own]
        if len(set(forms)) < len(forms):
            raise Damaged(f"{path} has a word in two concepts: leave it in one of them")
        return cls(tuple(map(tuple, words)), torch.tensor(counts).float(), torch.tensor(together).float())


def _are_forms(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def _are_counts(value: object, number: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == number
        and all(type(n) is int and 0 <= n < 2**53 for n in value)
    )
