"""A training step recorded once as a CUDA graph and replayed: hundreds of small kernels become one launch.

Nothing else in the package knows about recording. There is one recording for each number of tokens and each
phase of the loss. The first step of a kind runs unrecorded, which is all the warming up that a recording
needs; the second is recorded.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.ranks import Processes
from selhn.data import Pairs, PlannedStep
from selhn.data.steps import seed_for
from selhn.ops.gpu import own_stream
from selhn.training.log import Numbers

Compute = Callable[[Pairs, int], dict[str, Tensor]]
"""A whole step: batch, forward, backward, update; returns its numbers, on the device."""


class Stepper:
    """Runs training steps, by replaying a recording if there is one.

    Args:
        compute: the step; its shapes may depend only on the number of tokens.
        generator: source of its random numbers, besides torch's own generator.
        record: whether to record at all; otherwise every step runs as plain PyTorch.
        ranks: the processes that train together. Each draws its own numbers from torch's generator, such as those
            of dropout: they depend only on the step and the rank, so checkpoints need not store them.
    """

    def __init__(
        self, compute: Compute, generator: torch.Generator, record: bool, ranks: Processes | None = None
    ):
        self.compute = compute
        self.generator = generator
        self.record, self.ranks = record, ranks
        self._met: set[Hashable] = set()
        self._recordings: dict[Hashable, _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle() if record else None

    def __call__(self, step: PlannedStep, phase: Hashable = None) -> Numbers:
        """One step. `phase` names what changes the computation but not the shapes, such as a loss's phase."""
        self.generator.manual_seed(step.seed)
        if self.ranks is not None:
            torch.manual_seed(seed_for(step.seed, self.ranks.own))
        shape = (step.num_tokens, phase, step.pairs.regions is None)
        if shape in self._recordings:
            return self._recordings[shape].replay(step.pairs)
        if not self.record or shape not in self._met:
            self._met.add(shape)
            return Numbers.of(self.compute(step.pairs, step.num_tokens))
        try:
            recording = _Recording(self.compute, step, self.generator, self._pool)
        except RuntimeError as error:
            _end_recording(torch.cuda.default_generators[torch.cuda.current_device()])
            if isinstance(error, torch.OutOfMemoryError):
                raise SelhnError(
                    f"out of memory while the training step was recorded ({str(error).splitlines()[0]}): a recording "
                    "keeps its own memory. Lower batch_size or feature_bytes, or train with capture=never"
                ) from error
            raise SelhnError(
                f"the training step could not be recorded as a CUDA graph ({str(error).splitlines()[0]}): "
                "a model or loss that reads its values on the host cannot be. Train with capture=never"
            ) from error
        self._recordings[shape] = recording
        return recording.replay(step.pairs)


class _Recording:
    """The CUDA graph of one step, and the tensors it reads its pairs from and leaves its numbers in."""

    def __init__(self, compute: Compute, step: PlannedStep, generator: torch.Generator, pool: Any):
        self.pairs = step.pairs.each(Tensor.clone)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        # All recordings share one memory pool, because no two run at once. Only this
        # thread is recorded: another one may be copying features.
        here = torch.cuda.current_stream()
        with torch.cuda.graph(self.graph, pool=pool, stream=here, capture_error_mode="thread_local"):
            self.numbers = Numbers.of(compute(self.pairs, step.num_tokens))

    def replay(self, pairs: Pairs) -> Numbers:
        for own, new in zip(self.pairs, pairs):
            if own is not None and new is not None:
                own.copy_(new)
        self.graph.replay()
        return Numbers(self.numbers.names, self.numbers.values.clone())


def _end_recording(generator: torch.Generator) -> None:
    """A generator that can be used again: one that was in a failed recording refuses to draw outside it."""
    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


@contextmanager
def recording_stream(device: torch.device) -> Iterator[None]:
    """Everything in here runs on a stream of its own: the default stream cannot be recorded."""
    if device.type != "cuda":
        yield
        return
    stream = own_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:  # also after an error: later code may read or free what this stream still uses
        torch.cuda.current_stream(device).wait_stream(stream)
