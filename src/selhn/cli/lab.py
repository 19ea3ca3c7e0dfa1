"""`selhn reproduce`, `selhn report`, `selhn diagnose` and `selhn show attention`."""

from pathlib import Path
from typing import Annotated

import typer

from selhn.cli.options import seed_numbers

show_app = typer.Typer(help="Show what a trained model looks at.", no_args_is_help=True, rich_markup_mode=None)


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="table1, fig1 and so on, or all; then key=value settings for every run.")
    ] = None,
    data: Annotated[str, typer.Option(help="world, f8k, f30k, coco, or the folder of a data set.")] = "world",
    tiny: Annotated[bool, typer.Option("--tiny", help="Make every run short, to check that it works.")] = False,
    seeds: Annotated[str, typer.Option(help="Seeds, such as 0,1,2: one run for each.")] = "0",
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/reproduce/DATA.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Parallel runs; 0 means one, or with --tiny one per core.")] = 0,
    show: Annotated[
        bool, typer.Option("--list", help="List tables and figures and the number of runs each needs.")
    ] = False,
) -> None:
    """Make the paper's tables and figures: train the missing runs and print our numbers beside the paper's."""
    from selhn.reproduce import describe, reproduce

    if show or not names:
        typer.echo(describe(data))
        return
    settings = [name for name in names if "=" in name]
    wanted = [name for name in names if "=" not in name]
    reproduce(wanted, data, out=out, small=tiny, seeds=seed_numbers(seeds), settings=settings, jobs=jobs)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, finished or not; several are drawn together.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File of the page; default report.html in the run, or in the folder of several runs."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data for the examples; default is that of the runs.")] = None,
    split: str = "test",
    examples: Annotated[int, typer.Option(help="Example queries of each kind; 0 for none.")] = 3,
    pictures: Annotated[Path | None, typer.Option(help="Folder with the images of the data, found by name.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Write one page about one run or several: verdict, results, curves, example retrievals, settings."""
    from selhn.report import write_report

    page = write_report(runs, out, data=data, split=split, examples=examples, pictures=pictures, device=device)
    typer.echo(f"{page}: {page.stat().st_size / 1024:,.0f} kB")


def diagnose(
    log: Annotated[
        Path, typer.Argument(help="Folder of a run, or a log of any program: CSV, JSON lines or TensorBoard.")
    ],
    column: Annotated[str | None, typer.Option(help="Column of the training loss.")] = None,
    margin: Annotated[float | None, typer.Option(help="Margin of the loss; default 0.2.")] = None,
    batch: Annotated[int | None, typer.Option(help="Pairs per batch; guessed by default.")] = None,
    reduction: Annotated[str | None, typer.Option(help="mean or sum over a batch; guessed by default.")] = None,
    figure: Annotated[Path | None, typer.Option(help="File for a figure.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Say in words whether a run is healthy, stalled, collapsing, diverging or overfitting, and what helps."""
    from selhn.cli.show import show_verdict

    show_verdict(log, column, margin, batch, reduction, figure, as_json)


@show_app.command("attention")
def attention(
    run: Annotated[Path, typer.Argument(help="Folder of a run or a saved model with attention over regions.")],
    image: Annotated[str, typer.Option(help="Name or number of an image in the split.")] = "0",
    text: Annotated[str | None, typer.Option(help="A sentence; default is the first text of the image.")] = None,
    data: Annotated[str | None, typer.Option(help="Data to use; default is that of the run.")] = None,
    split: str = "test",
    out: Annotated[Path, typer.Option(help="File for the figure.")] = Path("attention.png"),
    photo: Annotated[Path | None, typer.Option(help="The image itself, to draw the boxes on.")] = None,
) -> None:
    """Show which word looks at which region of an image."""
    from selhn.cli.show import show_attention

    show_attention(run, image, text, data, split, out, photo)
