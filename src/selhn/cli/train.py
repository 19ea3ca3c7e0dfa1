"""`selhn train` and `selhn eval`."""

from pathlib import Path
from typing import Annotated

import typer

from selhn.cli.data import Settings
from selhn.cli.options import seed_numbers, stoppable


def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe such as rvse_selhn_world.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/RECIPE.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the run in this folder; epochs=30 makes it longer.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Several runs: 0,1,2; seeds=0,1,2 is the same.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List the recipes and the paper's numbers.")] = False,
) -> None:
    """Train by a recipe, with settings changed by key=value."""
    from selhn.training import describe_recipes, get_recipe, override, resume_run, run_seeds

    changes = [word for word in settings or [] if not word.startswith("seeds=")]
    if resume is not None:  # the first word after the folder is a setting too
        typer.echo(f"test  {resume_run(resume, [*([recipe] if recipe else []), *changes]).test}")
    elif show or recipe is None:
        typer.echo(describe_recipes())
    else:
        named = [seeds, *(word.removeprefix("seeds=") for word in settings or [] if word not in changes)]
        config = override(get_recipe(recipe), changes)
        typer.echo(run_seeds(config, seed_numbers(",".join(named)) or None, out or Path("runs") / recipe))


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Runs or saved models; several are averaged too.")],
    data: Annotated[str | None, typer.Option(help="Data to measure on; default is that of the runs.")] = None,
    split: str = "test",
    folds: Annotated[int | None, typer.Option(help="1 for COCO 5K; default 5 for COCO, else 1.")] = None,
    scores: Annotated[
        Path | None, typer.Option(help="Folder that keeps the scores; the same command resumes from it.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure the best model of a run, or of several and their ensemble."""
    from selhn.training import measure_runs, run_names

    width = max(len("ensemble"), *map(len, run_names(runs)))
    with stoppable():
        measured = measure_runs(runs, data, split, folds=folds, scores=scores, device=device, quiet=False)
        for name, metrics in measured:
            typer.echo(str(metrics) if len(runs) == 1 else f"{name:{width}}  {metrics}")
