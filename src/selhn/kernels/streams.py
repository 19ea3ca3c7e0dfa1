"""Two independent pieces of work at once."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")


def side_by_side(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """The results of both; in a step that is being recorded they become two branches, which then run at once.

    Elsewhere one comes after the other: a host that launches every kernel itself has nothing to gain from a
    second stream. The gradients flow back along the same two branches.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return first(), second()
    here = torch.cuda.current_stream()
    # Neither branch is on this stream: the backward pass of one would otherwise wait for what the other put
    # there before it.
    branches = _branches(here)
    results: list[Any] = []
    for branch, compute in zip(branches, (first, second)):
        branch.wait_stream(here)
        with torch.cuda.stream(branch):
            results.append(compute())
    for branch in branches:
        here.wait_stream(branch)
    return results[0], results[1]


@cache
def _branches(stream: torch.cuda.Stream) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Two for each stream, so that a branch can have branches."""
    return torch.cuda.Stream(stream.device), torch.cuda.Stream(stream.device)
