"""Whether a picture matches a text: judges its score by what is known about the words of the text."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import write_whole
from selhn.base.names import require_kind
from selhn.base.untrusted import read_json
from selhn.search.items import Hit
from selhn.search.query import Query
from selhn.towers import Cutoff
from selhn.towers.description import of_json

FIT_FILE = "fit.json"
FEATURES = ("one", "rarest", "usual", "length")
LEAST_SLOPE = 1e-3
"""A better score never has a worse fit."""


@dataclass(frozen=True)
class Fit:
    """Turns the scores of a text with pictures into numbers from 0 to 1; 0.5 and more mean a match.

    The score is not enough: 0.3 may be a dog for "dog", 0.5 not an invoice for "tax invoice". So each text
    has its own cut-off, which depends on the number of its words and on how often the model has met them in
    training. The fit is a logistic function of the score; its offset and slope are linear in these
    `text_features`. It does not depend on the other pictures of the library, nor on how many there are.
    `calibrate` learns it.
    """

    model: str
    """Digest of the model whose scores are judged."""
    counts: Mapping[str, int]
    """Number of training texts that have each word, at most 100; words that are not here are unknown to the model."""
    offset: tuple[float, ...]
    slope: tuple[float, ...]
    learnt: Mapping[str, Any] = field(default_factory=dict)
    """The data that the numbers were learnt on, and the precision that the cut-off was chosen for."""

    def __call__(self, text: str, scores: Sequence[float]) -> list[float]:
        """The fit of pictures with these scores."""
        features = text_features(self.counts, [text]).astype(np.float64)[0]
        offset, slope = features @ np.array(self.offset), features @ np.array(self.slope)
        numbers = offset + max(slope, LEAST_SLOPE) * np.array(scores, np.float64)
        return np.exp(-np.logaddexp(0, -numbers)).tolist()

    def unknown(self, text: str) -> list[str]:
        """The words of a text that the model has hardly met in training: rare ones, or of another language."""
        return list(dict.fromkeys(word for word in words_of(text) if word not in self.counts))

    def judge(self, query: Query, hits: list[Hit]) -> list[Hit]:
        """The answers with their fit, if the query is only a text and asks for images."""
        if query.text is None or query.find != "image" or query.shares != {"text": 1.0}:
            return hits
        return [
            replace(hit, fit=fit) for hit, fit in zip(hits, self(query.text, [hit.score for hit in hits]))
        ]

    def cutoff(self) -> dict[str, Any]:
        """What `towers.json` says about it."""
        return {name: value for name, value in asdict(self).items() if name != "model"}

    def write(self, path: Path) -> None:
        """Write it to a file, for example to `fit.json` in the folder of an index."""
        write_whole(path, json.dumps(asdict(self), ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Fit":
        """The inverse of `write`."""
        content = read_json(path)
        model = content.pop("model", None)
        try:
            require_kind("model", model, str)
            return cls(model, **vars(of_json(Cutoff, "it", content)))
        except SelhnError as wrong:
            raise Damaged(
                f"{path} does not say how scores are judged ({wrong}): remove it, or calibrate the model again"
            ) from None


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"\w+", text.lower())


def text_features(counts: Mapping[str, int], texts: Sequence[str]) -> Float[np.ndarray, "Q 4"]:
    """Per text: 1, log counts in training (of its rarest word; the mean of all), and its log length."""
    rows = []
    for text in texts:
        met = [math.log1p(counts.get(word, 0)) for word in words_of(text)] or [0.0]
        rows.append([1.0, min(met), sum(met) / len(met), math.log(len(met))])
    return np.array(rows, np.float32)


def find_fit(path: Path | str | None, model: str, cutoff: Cutoff | None = None) -> Fit | None:
    """The fit for the scores of an index: `fit.json` in its folder, or the `cutoff` of its towers."""
    if isinstance(path, Path) and (path / FIT_FILE).is_file():
        own = Fit.read(path / FIT_FILE)
        if own.model != model:
            raise SelhnError(
                f"{path / FIT_FILE} was learnt with another model: remove it, or calibrate this one"
            )
        return own
    return None if cutoff is None else Fit(model, **vars(cutoff))
