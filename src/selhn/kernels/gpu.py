"""What the kernels ask of a GPU: Triton, products in float32, two pieces of work at once."""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def fusable(*tensors: Tensor) -> bool:
    """Whether Triton kernels can work on these tensors; nobody without a GPU needs Triton."""
    return all(tensor.is_cuda for tensor in tensors) and _has_triton()


def wide_product(a: Float[Tensor, "*B m k"], b: Float[Tensor, "*B k n"]) -> Float[Tensor, "*B m n"]:
    """The product of matrices in half precision, summed and written in float32."""
    return (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out_dtype=torch.float32)


def side_by_side(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """The results of both; in a step that is being recorded they become two branches, which then run at once.

    Elsewhere one comes after the other: a host that launches every kernel itself has nothing to gain from a
    second stream. The gradients flow back along the same two branches.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return first(), second()
    here = torch.cuda.current_stream()
    # Neither branch is on this stream: the backward pass of one would wait for the other's work there.
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
