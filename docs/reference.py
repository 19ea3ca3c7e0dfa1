"""The reference pages that are made from the program: commands, settings, Python names."""

import ast
import dataclasses
import importlib
import inspect
import typing
from typing import Any

import typer

PARTS = ("losses", "models", "data", "training", "eval", "diagnose", "search", "pictures", "integrations")
PACKAGES = ["selhn", *(f"selhn.{name}" for name in PARTS)]
GIVEN = ("vocab_size", "tokenizer", "feature_dim")
"""What training takes from the data: not for people to set."""


def pages() -> dict[str, str]:
    """Every page by its path in the site."""
    found = {"reference/commands.md": commands(), "reference/settings.md": settings()}
    return found | {f"reference/{package.replace('.', '_')}.md": python(package) for package in PACKAGES}


def commands() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    from selhn.cli import app

    parts = [
        "# Commands\n",
        "What `--help` prints for every command. `selhn COMMAND --help` has the same in the shell.\n",
    ]

    def add(command: Any, path: str) -> None:
        if command.hidden:
            return
        context = command.context_class(command, info_name=path)
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(
            f"## `{path}`\n\n{inspect.cleandoc(command.help or '')}\n\n```text\n{path} {usage}\n```\n"
        )
        rows = [_row(parameter, context) for parameter in command.params]
        parts.append(_table(("argument or option", "what it does"), [row for row in rows if row]))
        for name, below in getattr(command, "commands", {}).items():
            add(below, f"{path} {name}")

    add(typer.main.get_command(app), "selhn")
    return "\n".join(parts)


def _row(parameter: Any, context: Any) -> tuple[str, str] | None:
    """A line of the table of a command."""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    name, text = record
    text, _, said = text.rpartition("[") if text.endswith("]") else (text, "", "")
    default = "Required." if said == "required]" else f"Default: `{said[9:-1]}`." if said else ""
    text = text.strip().replace("*", r"\*")  # a star is a star here, and not emphasis
    return f"`{name}`", f"{text} {default}".strip()


def settings() -> str:
    """Every setting of a run, with its default."""
    from selhn.data.formats import FORMATS
    from selhn.losses import LOSSES
    from selhn.models import MODELS
    from selhn.training.config import TrainConfig

    described = _described(TrainConfig)
    hints = typing.get_type_hints(TrainConfig)
    rows: list[tuple[str, ...]] = [
        (f"`{one.name}={_written(one.default)}`", f"{described[one.name]} {_kind(hints[one.name])}".strip())
        for one in dataclasses.fields(TrainConfig)
    ]
    parts = [
        "# Settings\n",
        "Every `key=value` of `selhn train`. In Python the settings of training are arguments of `selhn.train`, the"
        " others of `create_model`, `create_loss` and `load_data`. [Training](../train.md) explains the larger ones.\n",
        "## Training\n",
        _table(("setting", "what it does"), rows),
    ]
    for title, key, entries, text in (
        (
            "Models",
            "model",
            {name: entry.build for name, entry in MODELS.items()},
            "[models](selhn_models.md)",
        ),
        ("Losses", "loss", {name: entry.loss for name, entry in LOSSES.items()}, "[losses](selhn_losses.md)"),
        ("Data", "data", {name: entry.read for name, entry in FORMATS.items()}, "[data](../data.md)"),
    ):
        parts.append(
            f"## {title}\n\n`{key}=NAME` chooses, `{key}.SETTING=VALUE` sets. What they mean: {text}.\n"
        )
        rows = [(f"`{name}`", _signature(build)) for name, build in entries.items()]
        parts.append(_table((key, f"its settings, as `{key}.SETTING`"), rows))
    return "\n".join(parts)


def _described(config: type) -> dict[str, str]:
    """What stands below each field of a class."""
    (body,) = ast.parse(inspect.getsource(config)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:]):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[typing.cast(ast.Name, field.target).id] = " ".join(str(text.value.value).split())
    return found


def _kind(hint: Any) -> str:
    """The values that a setting can have, if there are only some."""
    if typing.get_origin(hint) is typing.Literal:
        return f"One of {', '.join(f'`{value}`' for value in typing.get_args(hint))}."
    return ""


def _written(value: object) -> str:
    """A default, as one types it."""
    return str(value).lower() if isinstance(value, bool) else "[]" if value == () else str(value)


def _signature(build: Any) -> str:
    """The settings of a model, a loss or a format with their defaults."""
    taken = [
        one
        for one in inspect.signature(build).parameters.values()
        if one.default is not inspect.Parameter.empty
    ]
    return (
        ", ".join(f"`{one.name}={_written(one.default)}`" for one in taken if one.name not in GIVEN) or "none"
    )


def _table(names: tuple[str, ...], rows: list[Any]) -> str:
    """A table of Markdown."""
    lines = [names, ["---"] * len(names), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n" if rows else ""


def python(package: str) -> str:
    """The public names of a package with their docstrings."""
    module = importlib.import_module(package)
    names = sorted(name for name in module.__all__ if not name.startswith("_"))
    return f"::: {package}\n    options:\n      heading_level: 1\n      members: {names}\n"
