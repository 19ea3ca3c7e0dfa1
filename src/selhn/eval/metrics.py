"""Image-text retrieval metrics: pure functions of scores and ground truth.

A query counts as found at k if its best-ranked relevant item is among the first k. Ties are settled by a
stated policy, never by the order of the data.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import require_kind
from selhn.base.untrusted import parse_json
from selhn.eval.scoring import DEFAULT_BYTE_BUDGET, AllPairs, Array, Indices, precision_queries, rank_queries

DEFAULT_KS = (1, 5, 10)


@dataclass(frozen=True)
class QueryRanks:
    """0-based rank of the best relevant item of each image and each text (on the CPU); -1 if none."""

    i2t: Int[Tensor, " I"]
    t2i: Int[Tensor, " T"]


@dataclass(frozen=True)
class DirectionMetrics:
    """One direction of retrieval: percentages, and ranks that start at 1; `metrics.i2t[5]` is R@5."""

    recalls: Mapping[int, float]
    median_rank: float
    mean_rank: float
    num_queries: int
    r_precision: float | None = None
    map_at_r: float | None = None

    def __getitem__(self, k: int) -> float:
        if k not in self.recalls:
            computed = ", ".join(f"R@{known}" for known in self.recalls)
            raise NotFound(f"R@{k} was not computed, only {computed}: name it in the argument ks")
        return self.recalls[k]

    def to_dict(self) -> dict[str, float]:
        """A flat JSON object with the names used in papers; metrics that were not computed are left out."""
        named: dict[str, float] = {f"R@{k}": value for k, value in self.recalls.items()}
        named |= {name: getattr(self, name) for name in ("median_rank", "mean_rank", "num_queries")}
        if self.r_precision is not None and self.map_at_r is not None:
            named |= {"R-Precision": self.r_precision, "mAP@R": self.map_at_r}
        return named

    @classmethod
    def from_dict(cls, named: Any) -> "DirectionMetrics":
        if not isinstance(named, Mapping) or any(type(value) not in (int, float) for value in named.values()):
            raise SelhnError("metrics are numbers by name: give an object that Metrics.to_dict wrote")
        recalls = {int(name[2:]): value for name, value in named.items() if re.fullmatch(r"R@\d{1,9}", name)}
        median, mean, queries = (named[name] for name in ("median_rank", "mean_rank", "num_queries"))
        return cls(recalls, median, mean, queries, named.get("R-Precision"), named.get("mAP@R"))

    @classmethod
    def mean(cls, measured: Sequence["DirectionMetrics"]) -> "DirectionMetrics":
        """Every metric averaged; `num_queries` adds up."""
        tables = [one.to_dict() for one in measured]
        if any(table.keys() != tables[0].keys() for table in tables):
            raise SelhnError("metrics of different kinds cannot be averaged: use the same ks and extended")
        averaged = {name: math.fsum(table[name] for table in tables) / len(tables) for name in tables[0]}
        return cls.from_dict(averaged | {"num_queries": sum(one.num_queries for one in measured)})


@dataclass(frozen=True)
class Metrics:
    """Both directions of retrieval; prints as a row of a paper's table."""

    i2t: DirectionMetrics
    t2i: DirectionMetrics

    @property
    def rsum(self) -> float:
        """The sum of all recalls of both directions."""
        return sum([*self.i2t.recalls.values(), *self.t2i.recalls.values()])

    def __str__(self) -> str:
        # 100 without its decimal is as wide as the other percentages, so that rows stay aligned in a table.
        i2t, t2i = (
            " ".join(f"{value:4.1f}" if value < 99.95 else " 100" for value in direction.recalls.values())
            for direction in (self.i2t, self.t2i)
        )
        return f"i2t {i2t} | t2i {t2i} | rsum {self.rsum:5.1f}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON object that explains itself: {"i2t": {"R@1": ...}, "t2i": {...}, "rsum": ...}."""
        return {"i2t": self.i2t.to_dict(), "t2i": self.t2i.to_dict(), "rsum": self.rsum}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Metrics":
        return cls.from_dict(parse_json(text, "the text of metrics"))

    @classmethod
    def from_dict(cls, named: Any) -> "Metrics":
        """The inverse of `to_dict`, exact even after a round trip through JSON."""
        if not isinstance(named, Mapping):
            raise SelhnError(
                f"{str(named)[:40]!r} are not metrics: give an object that Metrics.to_dict wrote"
            )
        try:
            return cls(DirectionMetrics.from_dict(named["i2t"]), DirectionMetrics.from_dict(named["t2i"]))
        except KeyError as missing:
            raise SelhnError(f"metrics lack {missing}: give an object that Metrics.to_dict wrote") from None

    @classmethod
    def mean(cls, measured: Iterable["Metrics"]) -> "Metrics":
        """The average of several evaluations, such as folds or seeds."""
        measured = list(measured)
        if not measured:
            raise SelhnError("there are no metrics to average: give at least one")
        return cls(
            DirectionMetrics.mean([one.i2t for one in measured]),
            DirectionMetrics.mean([one.t2i for one in measured]),
        )


def recall(
    scores: Array,
    image_of_text: Indices | None = None,
    *,
    relevance: Array | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    ties: str = "pessimistic",
    extended: bool = False,
) -> Metrics:
    """Recall@k and ranks in both directions from scores (I, T).

    Args:
        image_of_text: the image each of the T texts belongs to, any number of texts per image. An image
            without text is a distractor for the texts and not a query itself.
        relevance: boolean (I, T), instead of `image_of_text`: texts may match several images (CxC, ...).
        ties: "pessimistic" ranks an equal wrong item ahead, so a model with one constant score finds
            nothing; "optimistic" ranks it behind.
        extended: adds R-Precision and mAP@R.
    """
    return measure(AllPairs.from_matrix(scores, image_of_text, relevance), ks, ties, extended)


def recall_from_embeddings(
    image_emb: Array,
    text_emb: Array,
    image_of_text: Indices | None = None,
    *,
    relevance: Array | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    ties: str = "pessimistic",
    extended: bool = False,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> Metrics:
    """`recall(image_emb @ text_emb.T, ...)` from embeddings (I, d) and (T, d) without the (I, T) matrix."""
    scored = AllPairs.from_embeddings(image_emb, text_emb, image_of_text, relevance)
    return measure(scored, ks, ties, extended, byte_budget)


def ranks(
    scores: Array,
    image_of_text: Indices | None = None,
    *,
    relevance: Array | None = None,
    ties: str = "pessimistic",
) -> QueryRanks:
    """The rank of every query under `recall`: the number of wrong items that beat its best relevant one."""
    scored = AllPairs.from_matrix(scores, image_of_text, relevance)
    i2t, _ = _rank_direction(scored, "i2t", ties)
    t2i, _ = _rank_direction(scored, "t2i", ties)
    return QueryRanks(i2t, t2i)


def measure(
    scored: AllPairs, ks: Sequence[int], ties: str, extended: bool, byte_budget: int = DEFAULT_BYTE_BUDGET
) -> Metrics:
    """Both directions, for any source of scores."""
    check_ks(ks)
    i2t = _summarise(*_rank_direction(scored, "i2t", ties, extended, byte_budget), ks)
    t2i = _summarise(*_rank_direction(scored, "t2i", ties, extended, byte_budget), ks)
    return Metrics(i2t, t2i)


def _rank_direction(
    scored: AllPairs,
    direction: Literal["i2t", "t2i"],
    ties: str,
    extended: bool = False,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> tuple[Int[Tensor, " Q"], Float[Tensor, "Q 2"] | None]:
    """Rank of each query and, if requested, its R-Precision and mAP@R."""
    require_kind("ties", ties, Literal["pessimistic", "optimistic"])
    num_queries = scored.num_images if direction == "i2t" else scored.num_texts
    # Filled in place: small results kept between large temporaries would scatter the memory of the allocator.
    rank = torch.empty(num_queries, dtype=torch.int64)
    precision = torch.empty(num_queries, 2, dtype=torch.float64) if extended else None
    for queries, tile in scored.tiles(direction, byte_budget):
        rank[queries] = rank_queries(tile, ties).cpu()
        if precision is not None:
            precision[queries] = precision_queries(tile, ties).cpu()
    return rank, precision


def _summarise(
    rank: Int[Tensor, " Q"], precision: Float[Tensor, "Q 2"] | None, ks: Sequence[int]
) -> DirectionMetrics:
    """The metrics of one direction over the queries that have a relevant item."""
    is_query = rank >= 0
    found_at = rank[is_query].numpy()
    extended = (None, None) if precision is None else (100 * precision[is_query].mean(0)).tolist()
    return DirectionMetrics(
        recalls={int(k): 100.0 * int((found_at < k).sum()) / len(found_at) for k in ks},
        # Official: the median of an even number of ranks is rounded down.
        median_rank=float(np.floor(np.median(found_at)) + 1),
        mean_rank=float(found_at.mean() + 1),
        num_queries=len(found_at),
        r_precision=extended[0],
        map_at_r=extended[1],
    )


def check_ks(ks: Sequence[int]) -> None:
    """Refuse cut-offs that make no sense."""
    whole = all(isinstance(k, Integral) and not isinstance(k, bool) for k in ks)
    if not whole or len(ks) == 0 or min(ks) < 1 or len(set(ks)) < len(ks):
        raise SelhnError(f"ks is {tuple(ks)}: give different whole numbers of at least 1, such as (1, 5, 10)")
