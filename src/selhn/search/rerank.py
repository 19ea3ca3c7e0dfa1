"""Two stages: vectors find the k best; a second model, usually one that compares regions with words, orders them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from selhn.base.errors import SelhnError
from selhn.search.index import Index
from selhn.search.items import Hit
from selhn.search.where import Where

FIRST_SHARE = 0.5
"""Weight of the first stage: two equally good models make different mistakes."""


SecondStage: TypeAlias = Callable[
    [str, Sequence[str], Sequence[float], float], tuple[list[float], list[float]]
]
"""From a text, the ids of the images found, their scores in the first stage and `first_share`: what the images are
ordered by, and their new scores. `selhn.eval.PairScorer` is one."""


class Reranker:
    """Scores the hits of a search again.

    Args:
        score: the second stage.
    """

    def __init__(self, score: SecondStage):
        self.score = score

    def search(
        self, index: Index, text: str, k: int = 5, depth: int = 50, where: Where | None = None,
        first_share: float = FIRST_SHARE,
    ) -> list[Hit]:  # fmt: skip
        """The k best images for a text: the `depth` best of an index, ordered by `rerank`."""
        return self.rerank(
            text, index.search(None, max(k, depth), "image", text=text, where=where), first_share
        )[:k]

    def rerank(self, text: str, hits: Sequence[Hit], first_share: float = FIRST_SHARE) -> list[Hit]:
        """The images that a text found, in the order of both stages; scores are on the scale of the second."""
        if any(hit.kind != "image" for hit in hits):
            raise SelhnError(
                "only images can be re-ranked, and these answers are captions: search for images"
            )
        if not hits:
            return []
        ids, first = [hit.id for hit in hits], [hit.score for hit in hits]
        numbers, scores = self.score(text, ids, first, first_share)
        order = sorted(range(len(hits)), key=lambda place: -numbers[place])
        return [replace(hits[place], score=scores[place]) for place in order]
