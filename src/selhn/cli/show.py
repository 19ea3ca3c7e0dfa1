"""`selhn show` and `selhn diagnose`: what a model looks at and what a log says, in words and as a picture."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from selhn.base.errors import SelhnError
from selhn.base.names import printable

if TYPE_CHECKING:
    from selhn.base.types import Attention

show_app = typer.Typer(help="Show what a model looks at.", no_args_is_help=True, rich_markup_mode=None)
SHOWN = 3
"""Number of regions that are printed for a word."""


@show_app.command("attention")
def attention(
    run: Annotated[Path, Argument(help="Folder of a run or a saved model with attention over regions.")],
    image: Annotated[str, Option(help="Name or number of an image in the split.")] = "0",
    text: Annotated[str | None, Option(help="A sentence; default is the first text of the image.")] = None,
    data: Annotated[str | None, Option(help="Data to use; default is that of the run.")] = None,
    split: Annotated[str, Option(help="Split of the data: train, dev or test.")] = "test",
    out: Annotated[Path, Option(help="File for the figure.")] = Path("attention.png"),
    photo: Annotated[Path | None, Option(help="The image itself, to draw the boxes on.")] = None,
) -> None:
    """Show which word looks at which region of an image."""
    import numpy as np

    from selhn.data.world import WorldFeatures, world_scene
    from selhn.data.world.render import render
    from selhn.diagnose import attention_figure
    from selhn.eval import image_row, pair_attention
    from selhn.pictures import open_picture
    from selhn.training import open_run

    model, dataset = open_run(run, data)
    items = dataset[split]
    row = image_row(items, image)
    if text is None:
        own = (items.image_of_text == row).nonzero()[:1, 0].tolist()
        if not own:
            raise SelhnError(f"image {image} of {split} has no text: give one with --text")
        text = items.captions[own[0]]
    found = pair_attention(model, items, row, text)
    typer.echo(f"{printable(items.image_names[row])}  score {found.score:.3f}\n{attention_table(found)}")
    picture = None  # the boxes are then drawn on an empty canvas
    if photo is not None:
        picture = np.asarray(open_picture(photo).image)
    elif isinstance(items.features, WorldFeatures):
        picture = np.asarray(render(world_scene(items, row)))
    typer.echo(f"Picture: {attention_figure(found, out, picture)}")


def attention_table(attention: "Attention") -> str:
    """A line for every word: the regions with the largest weights, and these weights."""
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


def diagnose(
    log: Annotated[
        Path, Argument(help="Folder of a run, or any log: CSV, JSON, TensorBoard, printed text; - for stdin.")
    ],
    column: Annotated[str | None, Option(help="Column of the training loss.")] = None,
    margin: Annotated[float | None, Option(help="Margin of the loss; default 0.2.")] = None,
    batch: Annotated[int | None, Option(help="Pairs per batch; guessed by default.")] = None,
    reduction: Annotated[str | None, Option(help="mean or sum over a batch; guessed by default.")] = None,
    figure: Annotated[Path | None, Option(help="File for a figure.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Say whether training is stuck, and what helps.

    The verdict on a run or a log is healthy, stalled, collapsing, diverging, chance, overfitting or unclear.
    """
    from selhn.base.disk_errors import is_read_only
    from selhn.diagnose import diagnose, verdict_figure
    from selhn.runs import RunFolder

    found = diagnose(log, column=column, margin=margin, batch=batch, reduction=reduction)
    if log.is_dir() and RunFolder(log).identity and column is None:
        try:
            RunFolder(log).write_verdict(found.verdict.to_dict())
        except OSError as error:
            if not is_read_only(error):  # as someone else's run is
                raise
    typer.echo(json.dumps(found.verdict.to_dict(), indent=1) if as_json else str(found.verdict))
    if figure is not None:
        verdict_figure(found.log, found.verdict, figure, found.plateau, found.epsilon)
        typer.echo(f"Picture: {figure}", err=as_json)
