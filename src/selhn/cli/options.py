"""What several commands share."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from selhn.base.errors import SelhnError


def seed_numbers(seeds: str) -> list[int]:
    """The numbers in a list such as 0,1,2."""
    if not all(seed.isdigit() and len(seed) < 19 for seed in seeds.split(",") if seed):
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
