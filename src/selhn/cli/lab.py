"""`selhn reproduce`, `selhn report`, `selhn diagnose` and `selhn show attention`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from selhn.cli.options import seed_numbers

show_app = typer.Typer(help="Show what a model looks at.", no_args_is_help=True, rich_markup_mode=None)


def reproduce(
    names: Annotated[
        list[str] | None, Argument(help="table1, fig1 and so on, or all; then key=value for every run.")
    ] = None,
    data: Annotated[str, Option(help="world, f8k, f30k, coco, or the folder of a data set.")] = "world",
    tiny: Annotated[bool, Option("--tiny", help="Make every run short, to check that it works.")] = False,
    seeds: Annotated[str, Option(help="Seeds, such as 0,1,2: one run for each.")] = "0",
    out: Annotated[Path | None, Option(help="Folder; default runs/reproduce/DATA.")] = None,
    jobs: Annotated[int, Option(min=0, help="Parallel runs; 0 means one, or with --tiny one per core.")] = 0,
    show: Annotated[bool, Option("--list", help="List tables, figures and their runs.")] = False,
) -> None:
    """Make the paper's tables and figures: train missing runs, and compare our numbers with the paper's."""
    from selhn.reproduce import describe, reproduce

    if show or not names:
        typer.echo(describe(data))
        return
    settings = [name for name in names if "=" in name]
    wanted = [name for name in names if "=" not in name]
    reproduce(wanted, data, out=out, small=tiny, seeds=seed_numbers(seeds), settings=settings, jobs=jobs)


def report(
    runs: Annotated[list[Path], Argument(help="Folders of runs; several are drawn together.")],
    out: Annotated[
        Path | None,
        Option(help="File of the page; default report.html in the run, or beside several runs."),
    ] = None,
    data: Annotated[str | None, Option(help="Data for the examples; default is that of the runs.")] = None,
    split: str = "test",
    examples: Annotated[int, Option(help="Example queries of each kind; 0 for none.")] = 3,
    pictures: Annotated[Path | None, Option(help="Folder with the images, found by name.")] = None,
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Write one page about one run or several: verdict, results, curves, example retrievals, settings."""
    from selhn.report import write_report

    page = write_report(
        runs,
        out,
        data=data,
        split=split,
        examples=examples,
        pictures=pictures,
        device=device,
    )
    typer.echo(f"{page}: {page.stat().st_size / 1024:,.0f} kB")


def diagnose(
    log: Annotated[Path, Argument(help="Folder of a run, or any log: CSV, JSON lines or TensorBoard.")],
    column: Annotated[str | None, Option(help="Column of the training loss.")] = None,
    margin: Annotated[float | None, Option(help="Margin of the loss; default 0.2.")] = None,
    batch: Annotated[int | None, Option(help="Pairs per batch; guessed by default.")] = None,
    reduction: Annotated[str | None, Option(help="mean or sum over a batch; guessed by default.")] = None,
    figure: Annotated[Path | None, Option(help="File for a figure.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Say whether a run is healthy, stalled, collapsing, diverging or overfitting, and what helps."""
    from selhn.cli.show import show_verdict

    show_verdict(log, column, margin, batch, reduction, figure, as_json)


@show_app.command("attention")
def attention(
    run: Annotated[Path, Argument(help="Folder of a run or a saved model with attention over regions.")],
    image: Annotated[str, Option(help="Name or number of an image in the split.")] = "0",
    text: Annotated[str | None, Option(help="A sentence; default is the first text of the image.")] = None,
    data: Annotated[str | None, Option(help="Data to use; default is that of the run.")] = None,
    split: str = "test",
    out: Annotated[Path, Option(help="File for the figure.")] = Path("attention.png"),
    photo: Annotated[Path | None, Option(help="The image itself, to draw the boxes on.")] = None,
) -> None:
    """Show which word looks at which region of an image."""
    from selhn.cli.show import show_attention

    show_attention(run, image, text, data, split, out, photo)
