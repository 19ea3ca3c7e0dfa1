"""`selhn train`, `selhn eval`, `selhn reproduce` and `selhn report`: make, measure and show runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from selhn.base.errors import SelhnError
from selhn.base.names import did_you_mean


class KeyValue(TyperCommand):
    """A command whose settings are `key=value`: explains it to those who write --key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an unknown option."""
        known = [name for option in self.get_params(ctx) for name in option.opts]
        for word in args:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                written = f"settings are written {option[2:]}=VALUE"
                raise SelhnError(f"there is no option {option}: {did_you_mean(option, known, written)}")
        return super().parse_args(ctx, args)


def train(
    recipe: Annotated[
        str | None, Argument(help="A recipe such as rvse_selhn_world; default rvse_strong, with data=DIR.")
    ] = None,
    settings: Annotated[
        list[str] | None, Argument(help="key=value, such as epochs=5, loss=selhn, model.dim=256, data=DIR.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder of the run; default runs/RECIPE, or runs/strong.")
    ] = None,
    resume: Annotated[
        Path | None,
        Option(help="Continue the run in this folder; epochs=30 makes it longer."),
    ] = None,
    seeds: Annotated[str, Option(help="Several runs: 0,1,2; seeds=0,1,2 is the same.")] = "",
    track: Annotated[
        str | None,
        Option(
            help="Also send curves to tensorboard, wandb, trackio or mlflow; separate several with commas."
        ),
    ] = None,
    show: Annotated[bool, Option("--list", help="List the recipes and the paper's numbers.")] = False,
) -> None:
    """Train a model with a recipe; key=value changes settings."""
    from selhn.base.ranks import joined
    from selhn.training import describe_recipes, get_recipe, override, resume_run, run_config, run_seeds
    from selhn.training.recipes import DEFAULT_RECIPE

    words = [*([] if recipe is None else [recipe]), *(settings or [])]
    changes = [word for word in words if not word.startswith("seeds=")]
    with joined() as ranks:  # with torchrun, the processes beside this one
        if resume is not None:
            said = f"test  {resume_run(resume, words, track=track).test}"
        elif show or recipe is None:
            said = describe_recipes()
        else:
            # Without a recipe the settings not named are those of the default one, such as its self-distillation.
            name = changes.pop(0) if changes and "=" not in changes[0] else None
            config = override(get_recipe(DEFAULT_RECIPE if name is None else name), changes)
            out = out or Path("runs") / ("strong" if name is None else name)
            named = [seeds, *(word.removeprefix("seeds=") for word in words if word.startswith("seeds="))]
            if numbers := seed_numbers(",".join(filter(None, named))):
                said = run_seeds(config, numbers, out, track)
            else:
                run = run_config(config, out, track=track)
                said = f"test  {run.test}\nbest epoch {run.best_epoch + 1}; everything is in {out}"
        if ranks is None or ranks.own == 0:
            typer.echo(said)


def evaluate(
    runs: Annotated[list[Path], Argument(help="Runs or saved models; several are averaged too.")],
    data: Annotated[str | None, Option(help="Data to measure on; default is that of the runs.")] = None,
    split: Annotated[str, Option(help="Split of the data: train, dev or test.")] = "test",
    folds: Annotated[int | None, Option(help="1 for COCO 5K; default 5 for COCO, else 1.")] = None,
    scores: Annotated[
        Path | None, Option(help="Folder that keeps the scores; the same command resumes from it.")
    ] = None,
    device: Annotated[str, Option(help="Device: auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure a run, or several and their ensemble. Uses the best model of each run.

    Below the recalls are their 95 % intervals (a bootstrap of the test images).
    """
    from selhn.eval import folds_of, measure_split, recall_intervals
    from selhn.training import run_names, score_runs

    width = 0 if len(runs) == 1 else max(len("ensemble"), *map(len, run_names(runs))) + 2
    with stoppable():
        scored = score_runs(runs, data, split, folds=folds, scores=scores, device=device, quiet=False)
        for name, items, numbers in scored:
            typer.echo(f"{name if width else '':{width}}{measure_split(numbers, items, folds=folds)}")
            intervals = recall_intervals(numbers, items.image_of_text, folds=folds_of(items, folds))
            typer.echo(f"{'':{width}}{intervals}")


def reproduce(
    names: Annotated[
        list[str] | None, Argument(help="table1, fig1 and so on, or all; then key=value for every run.")
    ] = None,
    data: Annotated[str, Option(help="world, f8k, f30k, coco, or the folder of a data set.")] = "world",
    tiny: Annotated[bool, Option("--tiny", help="Make every run short, to check that it works.")] = False,
    seeds: Annotated[str, Option(help="Seeds, such as 0,1,2: one run for each.")] = "0",
    out: Annotated[
        Path | None, Option(help="Folder for runs and tables; default runs/reproduce/DATA.")
    ] = None,
    jobs: Annotated[int, Option(min=0, help="Parallel runs; 0 means one, or with --tiny one per core.")] = 0,
    show: Annotated[bool, Option("--list", help="List tables, figures and their runs.")] = False,
) -> None:
    """Make the paper's tables and figures. Trains missing runs, and compares our numbers with the paper's."""
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
    split: Annotated[str, Option(help="Split of the data: train, dev or test.")] = "test",
    examples: Annotated[int, Option(help="Example queries of each kind; 0 for none.")] = 3,
    pictures: Annotated[Path | None, Option(help="Folder with the images, found by name.")] = None,
    device: Annotated[str, Option(help="Device: auto, cpu or cuda.")] = "auto",
) -> None:
    """Write one page about one run or several.

    It has the verdict, results, curves, example searches and settings.
    """
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


def seed_numbers(seeds: str) -> list[int]:
    """The numbers in a list such as 0,1,2."""
    if not all(seed.isdecimal() and len(seed) < 19 for seed in seeds.split(",") if seed):
        raise SelhnError(f"--seeds takes whole numbers such as 0,1,2, got {seeds!r}")
    return [int(seed) for seed in seeds.split(",") if seed]


@contextmanager
def stoppable() -> Iterator[None]:
    """Print the message of a KeyboardInterrupt, which typer would drop."""
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo(f"\nselhn: {stop or 'stopped'}", err=True)
        raise typer.Exit(130) from None
