"""The command line. A command imports what it calls when it runs, so `--help` answers without torch."""

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from selhn.base.errors import SelhnError, SelhnWarning
from selhn.base.names import load_plugins, printable
from selhn.base.version import __version__
from selhn.cli import embed, index, photos, show, train
from selhn.cli.data import data_app
from selhn.cli.export import export_app
from selhn.cli.towers import towers_app

app = typer.Typer(
    help="Image-text matching: train, measure and search, with hard negatives that do not stall.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"selhn {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def prepare(
    version: Annotated[
        bool, Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run before every command."""
    load_plugins()


app.add_typer(data_app, name="data")
app.add_typer(show.show_app, name="show")
app.add_typer(export_app, name="export")
app.add_typer(towers_app, name="towers")


@app.command()
def demo(
    out: Annotated[Path, Option(help="Folder for runs, figure and pictures.")] = Path("runs/demo"),
    images: Annotated[int, Option(help="Images in the generated world.")] = 2000,
    epochs: Annotated[int, Option(help="Epochs of each of the two runs.")] = 12,
    pictures: Annotated[bool, Option("--pictures", help="Search the example photographs instead.")] = False,
) -> None:
    """Train a model with T-HN and with SelHN, and search. The data is a small generated world."""
    from selhn.cli.demo import run_demo, run_picture_demo

    run_picture_demo(out) if pictures else run_demo(out, images, epochs)


@app.command()
def models(pattern: Annotated[str, Argument(help="A shell pattern such as '*vse*'.")] = "*") -> None:
    """List the models."""
    from selhn.models import MODELS, list_models

    if not list_models(pattern):
        raise SelhnError(f"no model matches {pattern!r}: `selhn models` lists them all")
    for name in list_models(pattern):
        typer.echo(f"{name:16} {MODELS[name].family:24} {MODELS[name].paper}")


@app.command()
def losses(pattern: Annotated[str, Argument(help="A shell pattern such as '*hn'.")] = "*") -> None:
    """List the losses."""
    from selhn.losses import LOSSES, list_losses

    if not list_losses(pattern):
        raise SelhnError(f"no loss matches {pattern!r}: `selhn losses` lists them all")
    for name in list_losses(pattern):
        entry = LOSSES[name]
        typer.echo(f"{name:15} {entry.equation:70} {entry.paper} {entry.url}".rstrip())


app.command()(photos.photos)
app.command(cls=train.KeyValue)(train.train)
app.command("eval")(train.evaluate)
app.command()(index.index)
app.command()(embed.embed)
app.command(cls=index.Words)(index.search)
for command in (index.serve, train.reproduce, show.diagnose, train.report):
    app.command()(command)


def share_cores() -> None:
    """Let the threads of torch sleep while they wait for each other; they read this when torch is imported.

    By default they spin for milliseconds. If other programs use the cores, the thread that they wait for cannot run
    meanwhile, and a training step can take a hundred times as long (`benchmarks/busy.py`).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def main() -> None:
    """Run the command line: our errors and warnings are one line, anything else keeps its traceback."""
    share_cores()
    usual = warnings.formatwarning

    def in_one_line(message: Any, category: type[Warning], *place: Any, **line: Any) -> str:
        ours = issubclass(category, SelhnWarning)
        return f"selhn: warning: {printable(message)}\n" if ours else usual(message, category, *place, **line)

    warnings.formatwarning = in_one_line
    try:
        app()
    except (SelhnError, OSError) as error:
        of_file = isinstance(error, OSError) and error.filename is not None
        reason = f"{error.filename}: {error.strerror}" if of_file else error  # type: ignore[union-attr]
        # Some have several lines; a line break in the name of a file must not look like another message.
        typer.echo("\n  ".join(map(printable, f"selhn: {reason}".split("\n"))), err=True)
        sys.exit(2)
