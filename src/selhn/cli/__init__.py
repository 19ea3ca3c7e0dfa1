"""The command line. Each command calls one function, imported inside it, so that `--help` answers at once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from selhn.base.errors import SelhnError
from selhn.cli.data import Settings, data_app
from selhn.cli.export import export_app

app = typer.Typer(
    help="Image-text matching: train, measure and search, with hard negatives that do not stall.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
show_app = typer.Typer(help="See what a trained model sees.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(show_app, name="show")
app.add_typer(export_app, name="export")

URI_HELP = (
    "Instead of a folder: Milvus, http://host:19530 or a file of Milvus Lite, pictures.db; #name behind it names one."
)
INDEX_HELP = "Folder of the index; default selhn.index here or, for pictures, one for you in ~/.local/share/selhn."


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the figure and the pictures.")] = Path("runs/demo"),
    images: Annotated[int, typer.Option(help="Images in the generated world.")] = 2000,
    epochs: Annotated[int, typer.Option(help="Epochs of each of the two runs.")] = 12,
    pictures: Annotated[bool, typer.Option("--pictures", help="Instead: search the example photographs.")] = False,
) -> None:
    """Train RVSE with T-HN and with SelHN on a generated world, compare them, and search."""
    from selhn.cli.demo import run_demo, run_picture_demo

    run_picture_demo(out) if pictures else run_demo(out, images, epochs)


@app.command()
def models(pattern: Annotated[str, typer.Argument(help="A shell pattern such as '*vse*'.")] = "*") -> None:
    """List the models."""
    from selhn.models import MODELS, list_models

    if not list_models(pattern):
        raise SelhnError(f"no model matches {pattern!r}: `selhn models` lists them all")
    for name in list_models(pattern):
        typer.echo(f"{name:16} {MODELS[name].family:24} {MODELS[name].paper}")


@app.command()
def losses(pattern: Annotated[str, typer.Argument(help="A shell pattern such as '*hn'.")] = "*") -> None:
    """List the losses."""
    from selhn.losses import LOSSES, list_losses

    if not list_losses(pattern):
        raise SelhnError(f"no loss matches {pattern!r}: `selhn losses` lists them all")
    for name in list_losses(pattern):
        typer.echo(f"{name:15} {LOSSES[name].equation:70} {LOSSES[name].paper}")


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe such as rvse_selhn_world.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/RECIPE.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this folder; epochs=30 makes it longer.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Several runs: 0,1,2; seeds=0,1,2 is the same.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List the recipes and what the paper reached.")] = False,
) -> None:
    """Train by a recipe, with settings changed by key=value."""
    from selhn.training import describe_recipes, get_recipe, override, resume_run, run_seeds

    changes = [setting for setting in settings or [] if not setting.startswith("seeds=")]
    seeds = next((word.removeprefix("seeds=") for word in settings or [] if word.startswith("seeds=")), seeds)
    if resume is not None:  # the first word after the folder is a setting too
        typer.echo(f"test  {resume_run(resume, [*([recipe] if recipe else []), *changes]).test}")
    elif show or recipe is None:
        typer.echo(describe_recipes())
    else:
        numbers = seed_numbers(seeds) or None
        typer.echo(run_seeds(override(get_recipe(recipe), changes), numbers, out or Path("runs") / recipe))


@app.command("eval")
def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs or of saved models; several are averaged too.")],
    data: Annotated[str | None, typer.Option(help="Other data than the runs' own.")] = None,
    split: str = "test",
    folds: Annotated[int, typer.Option(help="5 for COCO 1K.")] = 1,
    scores: Annotated[
        Path | None, typer.Option(help="Folder that keeps what images and texts are ranked by; resumes from it.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure the best model of a run, or of several and their ensemble."""
    from selhn.training import measure_runs, run_names

    width = max(len("ensemble"), *map(len, run_names(runs)))
    with _stoppable():
        for name, metrics in measure_runs(runs, data, split, folds=folds, scores=scores, device=device, progress=True):
            typer.echo(str(metrics) if len(runs) == 1 else f"{name:{width}}  {metrics}")


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="table1 ... fig1 ..., or all; then key=value settings for every run.")
    ] = None,
    data: Annotated[str, typer.Option(help="world, f8k, f30k, coco, or the folder of a data set.")] = "world",
    tiny: Annotated[bool, typer.Option("--tiny", help="Make every run short: to see that it works.")] = False,
    seeds: Annotated[str, typer.Option(help="Several runs each: 0,1,2.")] = "0",
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/reproduce/DATA.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0: one, and with --tiny one a core.")] = 0,
    show: Annotated[bool, typer.Option("--list", help="List tables and figures and how many runs they need.")] = False,
) -> None:
    """Make the paper's tables and figures: train what is missing, and put ours beside its numbers."""
    from selhn.reproduce import describe, reproduce

    if show or not names:
        typer.echo(describe(data))
        return
    settings = [name for name in names if "=" in name]
    wanted = [name for name in names if "=" not in name]
    reproduce(wanted, data, out=out, small=tiny, seeds=seed_numbers(seeds), settings=settings, jobs=jobs)


def seed_numbers(seeds: str) -> list[int]:
    """Whole numbers between commas."""
    if not all(seed.isdigit() and len(seed) < 19 for seed in seeds.split(",") if seed):
        raise SelhnError(f"--seeds takes whole numbers such as 0,1,2, got {seeds!r}")
    return [int(seed) for seed in seeds.split(",") if seed]


@app.command()
def index(
    source: Annotated[
        str | None, typer.Argument(help="A folder of pictures, or a data set; default is the data of the run.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--index", help=INDEX_HELP)] = None,
    uri: Annotated[str | None, typer.Option(help=URI_HELP)] = None,
    model: Annotated[
        Path | None, typer.Option(help="A run or a saved model; for pictures the one in the package is there.")
    ] = None,
    split: str = "test",
    precision: Annotated[str, typer.Option(help="Of a new index: float32, float16 or int8.")] = "float32",
    captions: Annotated[Path | None, typer.Option(help="Of pictures, as in selhn data import.")] = None,
    extractor: Annotated[str | None, typer.Option(help="Of pictures, as in selhn data import.")] = None,
    device: Annotated[str, typer.Option(help="Of pictures: cpu or cuda.")] = "cpu",
    delete: Annotated[list[str] | None, typer.Option(help="Remove an item; may be given several times.")] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Give the room of removed items back.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare checksums.")] = False,
    approximate: Annotated[
        str | None, typer.Option(help="Candidates by FAISS: auto, hnsw, ivf, ivf_int8; exact for none.")
    ] = None,
) -> None:
    """Make an index of pictures or of a data set, bring it up to date, or change it; stopped, it goes on."""
    from selhn.cli.search import change_index, fill_index, index_place

    place = index_place(folder, uri)
    changes = bool(delete or compact or check or approximate)
    if source is not None or model is not None or not changes:
        pictures = {"captions": captions, "extractor": extractor, "device": device}
        with _stoppable():
            typer.echo(fill_index(source, place, model, split, precision, **pictures))  # type: ignore[arg-type]
    if changes:
        typer.echo(change_index(place, delete or [], compact, check, approximate))


@app.command()
def search(
    words: Annotated[
        list[str] | None, typer.Argument(help="What to look for; before it perhaps the folder of a run or an index.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--index", help=INDEX_HELP)] = None,
    uri: Annotated[str | None, typer.Option(help=URI_HELP)] = None,
    model: Annotated[
        Path | None, typer.Option(help="A run or a saved model, where the index does not hold it, as in Milvus.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of answers.")] = 5,
    where: Annotated[str | None, typer.Option(help='A filter such as: year >= 2020 and folder = "trip".')] = None,
    like: Annotated[
        str | None, typer.Option(help="A picture, or the id of an item; with a sentence, both count.")
    ] = None,
    find: Annotated[str, typer.Option(help="image, or text: the captions that fit.")] = "image",
    text_weight: Annotated[float, typer.Option(help="Of the sentence where --like counts 1.")] = 2.0,
    sheet: Annotated[Path | None, typer.Option(help="File for a sheet of the pictures found.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
    data: Annotated[str | None, typer.Option(help="Other data than the run's own.")] = None,
    split: str = "test",
) -> None:
    """Find the pictures that fit a sentence, a picture, or both."""
    from selhn.cli.search import answers, ask, index_place, save_sheet

    place = index_place(folder, uri)
    hits = ask(words or [], place, k, where, like, data, split, find=find, text_weight=text_weight, model=model)  # type: ignore[arg-type]
    typer.echo(answers(hits, as_json))
    if sheet is not None:
        save_sheet(sheet, " + ".join(filter(None, [*(words or [])[-1:], like and Path(like).name])), hits)


@app.command()
def serve(
    folder: Annotated[Path | None, typer.Argument(help="Folder of an index; default is that of your pictures.")] = None,
    uri: Annotated[str | None, typer.Option(help=URI_HELP)] = None,
    model: Annotated[
        Path | None, typer.Option(help="A run or a saved model, where the index does not hold it.")
    ] = None,
    examples: Annotated[bool, typer.Option("--examples", help="The example pictures, indexed on first use.")] = False,
    runs: Annotated[Path | None, typer.Option(help="Folder of training runs to show as they go.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.")] = 8000,
    token: Annotated[str | None, typer.Option(help="What clients must know; also SELHN_TOKEN.")] = None,
    hostname: Annotated[list[str] | None, typer.Option(help="A name it is reached by, beside localhost.")] = None,
    attention: Annotated[
        Path | None, typer.Option(help="A run that compares regions with words, to show what words look at.")
    ] = None,
    writable: Annotated[bool, typer.Option("--writable", help="Let clients add, change and delete items.")] = False,
) -> None:
    """Search in the browser, and over HTTP."""
    from selhn.cli.search import index_place
    from selhn.serve import serve

    serve(
        index_place(folder, uri),
        examples=examples,
        runs=runs,
        host=host,
        port=port,
        token=token,
        hostnames=hostname,
        attention=attention,
        writable=writable,
        model=model,
    )


@app.command("diagnose")
def diagnose_log(
    log: Annotated[Path, typer.Argument(help="Folder of a run, or anyone's log: CSV, lines of JSON, TensorBoard.")],
    column: Annotated[str | None, typer.Option(help="What the log calls its training loss.")] = None,
    margin: Annotated[float | None, typer.Option(help="Margin of the loss; 0.2 unless said otherwise.")] = None,
    batch: Annotated[int | None, typer.Option(help="Pairs in a batch; guessed otherwise.")] = None,
    reduction: Annotated[str | None, typer.Option(help="mean or sum over a batch; guessed otherwise.")] = None,
    figure: Annotated[Path | None, typer.Option(help="File for a picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Say in words whether a run is healthy, stalled, collapsing, diverging or overfitting, and what helps."""
    from selhn.cli.show import show_verdict

    show_verdict(log, column, margin, batch, reduction, figure, as_json)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, finished or not; several are laid over each other.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File of the page; default report.html in the run, or in the folder of the runs."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="For examples: other data than the runs' own.")] = None,
    split: str = "test",
    examples: Annotated[int, typer.Option(help="Example queries of each kind; 0 for none.")] = 3,
    pictures: Annotated[Path | None, typer.Option(help="Folder with the images of the data, by their names.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Write one page about one run or several: verdict, results, curves, example retrievals, settings."""
    from selhn.report import write_report

    page = write_report(runs, out, data=data, split=split, examples=examples, pictures=pictures, device=device)
    typer.echo(f"{page}: {page.stat().st_size / 1024:,.0f} kB")


@show_app.command("attention")
def attention(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run, or of a saved model, that compares regions with words.")
    ],
    image: Annotated[str, typer.Option(help="Name or number of an image of the split.")] = "0",
    text: Annotated[str | None, typer.Option(help="A sentence; default is the first text of the image.")] = None,
    data: Annotated[str | None, typer.Option(help="Other data than the run's own.")] = None,
    split: str = "test",
    out: Annotated[Path, typer.Option(help="File for the picture.")] = Path("attention.png"),
    photo: Annotated[Path | None, typer.Option(help="The image itself, to draw the boxes on.")] = None,
) -> None:
    """Which word looks at which region of an image."""
    from selhn.cli.show import show_attention

    show_attention(run, image, text, data, split, out, photo)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Pass on what Ctrl-C leaves to be said, which typer would swallow."""
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo(f"\nselhn: {stop or 'stopped'}", err=True)
        raise typer.Exit(130) from None


def main() -> None:
    """Run the command line. What the user can fix is one line and exit code 2; anything else keeps its traceback."""
    try:
        app()
    except SelhnError as error:
        _fail(str(error))
    except OSError as error:
        _fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")


def _fail(reason: str) -> NoReturn:
    typer.echo(f"selhn: {reason}", err=True)
    sys.exit(2)
