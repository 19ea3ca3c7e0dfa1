"""The ingredients of a batch, and their copy to a device while the previous step is computed."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

DEPTH = 3
"""Steps prepared ahead: one being copied, one waiting, one being gathered."""

ItemT = TypeVar("ItemT")


class Pairs(NamedTuple):
    """Indices of B texts and of their images, and features that are not on the device."""

    texts: Int[Tensor, " B"]
    images: Int[Tensor, " B"]
    regions: Float[Tensor, "B M F"] | None = None
    region_mask: Bool[Tensor, "B M"] | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Pairs":
        return Pairs._make(None if tensor is None else change(tensor) for tensor in self)


class PlannedStep(NamedTuple):
    """Everything a batch is made from."""

    pairs: Pairs
    num_tokens: int
    """N: the length of the longest text of the batch, or a few more."""
    seed: int
    """Seed of all random changes to the batch."""


def seed_for(*numbers: int) -> int:
    """A seed that depends on these whole numbers and nothing else."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


@cache
def copying_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all copies to a device.

    PyTorch reuses the same 32 streams of each priority: with one of the usual priority, a copy
    might land in the middle of a step that is being recorded.
    """
    return torch.cuda.Stream(device, priority=-1)


def prefetched(steps: Iterator[PlannedStep], device: torch.device) -> Iterator[PlannedStep]:
    """The same steps with their inputs on the device: gathered in a thread, copied on a separate stream."""
    if device.type != "cuda":
        yield from (step._replace(pairs=step.pairs.each(lambda tensor: tensor.to(device))) for step in steps)
        return
    stream = copying_stream(device)

    def send(tensor: Tensor) -> Tensor:
        # From pinned memory the copy runs in parallel with everything else.
        return tensor if tensor.is_cuda else tensor.pin_memory().to(device, non_blocking=True)

    def sent(step: PlannedStep) -> tuple[PlannedStep, torch.Event]:
        with torch.cuda.stream(stream):
            return step._replace(pairs=step.pairs.each(send)), stream.record_event()

    for step, arrived in in_background(map(sent, steps)):
        here = torch.cuda.current_stream(device)
        here.wait_event(arrived)
        for tensor in step.pairs:
            if tensor is not None:
                tensor.record_stream(here)  # the copying stream must not reuse its memory yet
        yield step


def in_background(items: Iterator[ItemT], depth: int = DEPTH) -> Iterator[ItemT]:
    """The items of an iterator that runs ahead in a thread; what it raises is raised here."""
    worker = ThreadPoolExecutor(1)
    end: Any = object()
    try:
        ahead = deque(worker.submit(next, items, end) for _ in range(depth))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(worker.submit(next, items, end))
            yield item
    finally:
        worker.shutdown(cancel_futures=True)
