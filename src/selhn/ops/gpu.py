"""GPU helpers for kernels: Triton, half precision with float32 sums, two branches at once."""

import importlib.util
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def fusable(*tensors: Tensor) -> bool:
    """Whether Triton kernels can work on these tensors; without a GPU, Triton is not needed."""
    return all(tensor.is_cuda for tensor in tensors) and _has_triton()


def takes_float32(*tensors: Tensor) -> bool:
    """Whether Triton kernels that take float32 can work on these tensors: none is empty."""
    return fusable(*tensors) and all(
        tensor.dtype == torch.float32 and tensor.numel() > 0 for tensor in tensors
    )


def half_precision(device: torch.device) -> torch.dtype | None:
    """The dtype of autocast; or float16 if no gradient is needed; None if float32 must stay."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None if torch.is_grad_enabled() else torch.float16


def in_half_precision(device: torch.device) -> AbstractContextManager[object]:
    """Products in float16 on a GPU if no gradient is needed, rounded as TF32 would; otherwise unchanged."""
    half = half_precision(device) if device.type == "cuda" else None
    return nullcontext() if half is None else torch.autocast(device.type, half)


def wide_product(a: Float[Tensor, "*B m k"], b: Float[Tensor, "*B k n"]) -> Float[Tensor, "*B m n"]:
    """The product of matrices in half precision, summed and written in float32."""
    return (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out_dtype=torch.float32)


def add_wide_product(total: Float[Tensor, "m n"], a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> None:
    """`total += a @ b` as precisely as `a` and `total` are; `b` may be in half precision.

    Then `a` is multiplied in two parts, what half precision holds of it and most of the remainder, in a unit
    in which the largest of its numbers is 1024: float16 would lose what is small.
    """
    if a.dtype == b.dtype:
        total.addmm_(a, b)
        return
    unit = a.abs().amax().clamp(min=torch.finfo(a.dtype).tiny) / 1024
    scaled = a / unit
    high = scaled.to(b.dtype)
    low = (scaled - high).to(b.dtype)
    total.addcmul_(wide_product(high, b) + wide_product(low, b), unit)


def side_by_side(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """The results of both; in a step that is being recorded they become two branches, which then run at once.

    Elsewhere one comes after the other: a host that launches every kernel itself has nothing to gain from a
    second stream. The gradients flow back along the same two branches.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return first(), second()
    here, above = torch.cuda.current_stream(), _own.path
    # Neither branch is on this stream: the backward pass of one would wait for the other's work there.
    branches = [own_stream(here.device, (*above, side)) for side in (0, 1)]
    if any(stream == here and place != above for (_, place), stream in _own.streams.items()):
        return first(), second()  # another recording uses one of our streams
    results: list[Any] = []
    try:
        for side, compute in enumerate((first, second)):
            _own.path = (*above, side)
            branches[side].wait_stream(here)
            with torch.cuda.stream(branches[side]):
                results.append(compute())
    finally:
        _own.path = above
    for branch in branches:
        here.wait_stream(branch)
    return results[0], results[1]


class Aside:
    """Work that nothing here waits for before `join`: in a step that is being recorded, a branch of its own."""

    def __init__(self) -> None:
        recorded = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        self._here = torch.cuda.current_stream() if recorded else None
        self._there = own_stream(self._here.device, (*_own.path, 2)) if self._here else None

    def __call__(self, compute: Callable[[], FirstT]) -> FirstT:
        """Its result, which may be read after `join`; what it reads must exist already, and until then."""
        if self._here is None or self._there is None:
            return compute()
        self._there.wait_stream(self._here)
        with torch.cuda.stream(self._there):
            return compute()

    def join(self) -> None:
        """From here on, the results may be read."""
        if self._here is not None and self._there is not None:
            self._here.wait_stream(self._there)


class _Own(threading.local):
    """The streams of a thread, by device and place among branches of branches; () is where they start."""

    def __init__(self) -> None:
        self.streams: dict[tuple[int, tuple[int, ...]], torch.cuda.Stream] = {}
        self.path: tuple[int, ...] = ()


_own, _everyones = _Own(), set[torch.cuda.Stream]()


def own_stream(device: torch.device, path: tuple[int, ...] = ()) -> Any:
    """The stream of a place, the same every time, and of no other place of this thread.

    PyTorch reuses the same 32 streams. If two places shared one, a tensor that was freed at
    the first could be overwritten at the second while the branch that was given it still reads it.
    """
    key = (torch.cuda.current_device() if device.index is None else device.index, path)
    if key not in _own.streams:
        ring = [torch.cuda.Stream(device) for _ in range(32)]
        free = [stream for stream in ring if stream not in _everyones]
        free += [
            stream for stream in ring if stream not in _own.streams.values()
        ]  # at worst those of other threads
        _own.streams[key] = free[0]
        _everyones.add(free[0])
    return _own.streams[key]
