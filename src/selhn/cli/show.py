"""`selhn show` and `selhn diagnose`: what a model looks at and what a log says, in words and as a picture."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selhn.base.errors import SelhnError
from selhn.base.types import Attention
from selhn.data import Split
from selhn.data.world import WorldFeatures, world_scene
from selhn.data.world.render import render
from selhn.diagnose import attention_figure, diagnose, verdict_figure
from selhn.eval import image_row, pair_attention
from selhn.pictures import open_picture
from selhn.runs import RunFolder
from selhn.training import open_run

SHOWN = 3
"""Regions that are printed for a word."""


def show_attention(
    run: Path,
    image: str,
    text: str | None,
    data: str | None = None,
    split: str = "test",
    out: Path = Path("attention.png"),
    photo: Path | None = None,
) -> None:
    """Print and draw where each word of a sentence, by default the first of the image, looks in an image.

    The boxes are drawn on `photo`, on the scene of a generated world, or else on an empty canvas.
    """
    model, dataset = open_run(run, data)
    items = dataset[split]
    row = image_row(items, image)
    if text is None:
        own = (items.image_of_text == row).nonzero()[:1, 0].tolist()
        if not own:
            raise SelhnError(f"image {image} of {split} has no text: give one with --text")
        text = items.captions[own[0]]
    attention = pair_attention(model, items, row, text)
    print(f"{items.image_names[row]}  score {attention.score:.3f}\n{attention_table(attention)}")
    print(f"Picture: {attention_figure(attention, out, _picture(items, row, photo))}")


def show_verdict(
    log: Path,
    column: str | None = None,
    margin: float | None = None,
    batch: int | None = None,
    reduction: str | None = None,
    figure: Path | None = None,
    as_json: bool = False,
) -> None:
    """Print the verdict on a log, draw it if a file is given, and keep it if the log is that of a run of ours."""
    found = diagnose(log, column=column, margin=margin, batch=batch, reduction=reduction)
    if log.is_dir() and RunFolder(log).identity and column is None:
        with suppress(PermissionError):  # someone else's run
            RunFolder(log).write_verdict(found.verdict.to_dict())
    if figure is not None:
        verdict_figure(found.log, found.verdict, figure, found.plateau, found.epsilon)
    print(json.dumps(found.verdict.to_dict(), indent=1) if as_json else found.verdict)
    if figure is not None and not as_json:
        print(f"Picture: {figure}")


def attention_table(attention: Attention) -> str:
    """A line for every word: the regions with the largest weights, and how large these are."""
    width = max(map(len, attention.words))
    best = attention.weights.topk(min(SHOWN, attention.weights.shape[1]))
    verb = "looks at" if attention.of_words is not None else "is looked at by"
    lines = []
    for number, word in enumerate(attention.words):
        found = zip(best.indices[number].tolist(), best.values[number].tolist())
        kept = "" if attention.kept is None else f"   counts {attention.kept[number]:.0%}"
        regions = "   ".join(f"region {region:2} {weight:4.0%}" for region, weight in found)
        lines.append(f"  {word:{width}}  {verb}  {regions}{kept}")
    return "\n".join(lines)


def _picture(split: Split, row: int, photo: Path | None) -> npt.NDArray[Any] | None:
    if photo is not None:
        return np.asarray(open_picture(photo).image)
    if isinstance(split.features, WorldFeatures):
        return np.asarray(render(world_scene(split, row)))
    return None
