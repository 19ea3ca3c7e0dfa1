"""Example retrievals: a few successful queries, a few failed ones, and where each run ranks the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.data import Split
from selhn.eval import ranks, score_split
from selhn.models import load_model
from selhn.report.records import RunRecord, ranked
from selhn.runs import RunFolder
from selhn.training.run import open_data

ANSWERS = 5
MOST_IMAGES = 500
"""Number of images that are searched: a model that compares every pair takes hours for thousands."""
CANNOT_OPEN = (SelhnError, OSError)
Direction = Literal["t2i", "i2t"]


@dataclass(frozen=True)
class Answer:
    """A retrieved image or text."""

    row: int
    place: int
    """From 1."""
    score: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A query and its first answers; at the end the first right one, if it is not among them."""

    query: int
    answers: tuple[Answer, ...]
    elsewhere: tuple[tuple[str, int], ...]
    """The rank of the first right answer in other runs."""

    @property
    def place(self) -> int:
        """Rank of the first right answer."""
        return next(answer.place for answer in self.answers if answer.right)


@dataclass(frozen=True)
class Examples:
    """What one run finds in a split."""

    run: RunRecord
    split: Split
    """The images that are searched."""
    whole: Split
    """All images; those are the first of them."""
    found: dict[Direction, tuple[Example, ...]]
    missed: dict[Direction, tuple[Example, ...]]
    first: dict[Direction, tuple[int, int]]
    """How many queries have a right answer at rank 1, and the total."""
    in_the_way: Mapping[str, str]
    """Why some runs are not compared."""


def find_examples(
    runs: Sequence[RunRecord], number: int, data: str | None = None, split: str = "test", device: str = "auto"
) -> Examples | dict[str, str]:
    """Examples of the best run that can be opened; if there is none, the reason for each.

    Runs on the data of the first come first: those on other data cannot be compared with it.
    Queries are chosen by rank only and spread evenly over the split: none is hand-picked.
    """
    on = choose_device(device)
    # Data that was named must be there; the runs' own data may be gone.
    named = None if data is None else open_data(runs[0].folder, data)[split]
    in_the_way: dict[str, str] = {}
    for best in sorted(ranked(runs), key=lambda run: run.data != runs[0].data):
        try:
            if named is None and best.config is None:
                raise SelhnError("it does not say what data it was trained on: name some with --data")
            whole = named or open_data(best.folder)[split]
            items = whole.first(MOST_IMAGES)
            scores = _scores(best, items, on)
            break
        except CANNOT_OPEN as error:
            in_the_way[best.name] = str(error)
    else:
        return in_the_way
    others = {}
    for other in runs:
        if other is not best and other.name not in in_the_way:
            try:
                if data is None and best.data != other.data:
                    raise SelhnError("it was trained on other data")
                others[other.name] = places(_scores(other, items, on), items)
            except CANNOT_OPEN as error:
                in_the_way[other.name] = str(error)

    def example(query: int, direction: Direction) -> Example:
        elsewhere = tuple((name, int(of_other[direction][query])) for name, of_other in others.items())
        if direction == "i2t":
            shown = first_answers(scores[query], items.image_of_text == query)
        else:
            shown = first_answers(
                scores[:, query], torch.arange(items.num_images) == items.image_of_text[query]
            )
        return Example(query, shown, elsewhere)

    found, missed, first = {}, {}, {}
    for way, place in places(scores, items).items():
        first[way] = int((place == 1).sum()), int((place > 0).sum())
        found[way], missed[way] = (tuple(example(row, way) for row in some) for some in choose(place, number))
    return Examples(best, items, whole, found, missed, first, in_the_way)


def places(scores: Float[Tensor, "I T"], split: Split) -> dict[Direction, Int[Tensor, " Q"]]:
    """The rank of the first right answer of every query, from 1; 0 if it has none."""
    found = ranks(scores, split.image_of_text)
    return {"t2i": found.t2i + 1, "i2t": found.i2t + 1}


def choose(place: Int[Tensor, " Q"], number: int) -> tuple[list[int], list[int]]:
    """Queries with a right answer at rank 1; and queries without one among those shown, or not first."""

    def spread(chosen: Bool[Tensor, " Q"]) -> list[int]:  # each from the middle of an equal part of them
        rows = chosen.nonzero()[:, 0].tolist()
        middles = [(2 * part + 1) * len(rows) // (2 * number) for part in range(number if rows else 0)]
        return list(dict.fromkeys(rows[middle] for middle in middles))

    far = place > ANSWERS
    return spread(place == 1), spread(far if bool(far.any()) else place > 1)


def first_answers(scores: Float[Tensor, " G"], right: Bool[Tensor, " G"]) -> tuple[Answer, ...]:
    """The first answers and the first right one; at equal scores the wrong one comes first, as in recall."""
    wrong_first = right.int().argsort(stable=True)
    order = wrong_first[scores[wrong_first].argsort(descending=True, stable=True)]
    shown = order[:ANSWERS].tolist()
    first = int(right[order].int().argmax())
    rows = [*enumerate(shown, 1), *([(first + 1, int(order[first]))] if first >= ANSWERS else [])]
    return tuple(Answer(row, place, float(scores[row]), bool(right[row])) for place, row in rows)


def _scores(run: RunRecord, items: Split, device: torch.device) -> Float[Tensor, "I T"]:
    if not items.num_texts:
        raise SelhnError(f"the first {items.num_images} images of {items.name} have no texts")
    if not RunFolder(run.folder).best.is_dir():
        raise SelhnError("it has kept no weights, because its first epoch is not finished")
    model = load_model(run.folder).to(device)
    scores = score_split(model, items, for_ranking=True, quiet=False).float().cpu()
    if bool(scores.isnan().any()):
        raise SelhnError("its weights give scores that are not numbers")
    return scores
