"""Processes that train together (ranks): how they connect, and what they exchange.

Every rank computes the same loss of the whole batch. A gradient that a rank holds, of a weight or of an
activation of its own pairs, is the number of ranks times its share in the gradient of that loss: averaged
over the ranks, as `DistributedDataParallel`, FSDP and `average_gradients` do, it is the whole.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.functional import pad

from selhn.base.errors import SelhnError

TIMEOUT = timedelta(days=1)
"""Long, because the others wait while rank 0 evaluates. A process that ends is noticed at once anyway."""
FAILED = "selhn/failed"
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Processes:
    """The processes of a group, seen from one of them."""

    own: int
    number: int
    group: dist.ProcessGroup | None = field(default=None, repr=False)

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None) -> "Processes | None":
        """The ranks of a group; None if this process is alone."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
            return None
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    def shares(self, total: int) -> "Shares":
        """Split `total` pairs as evenly as possible; the first parts may have one pair more."""
        if total < self.number:
            raise SelhnError(
                f"a batch of {total} pairs is too small for {self.number} processes: start fewer"
            )
        return Shares(self, [(total + self.number - 1 - rank) // self.number for rank in range(self.number)])

    def all(self, own: Shaped[Tensor, "*n"]) -> Shaped[Tensor, "R *n"]:
        """The tensors of all ranks, which must have the same shape."""
        is_mask = own.dtype == torch.bool
        own = (own.to(torch.uint8) if is_mask else own).contiguous()
        found = [torch.empty_like(own) for _ in range(self.number)]
        _exchange(lambda: dist.all_gather(found, own, self.group))
        return torch.stack(found).to(torch.bool) if is_mask else torch.stack(found)

    def sum(self, own: Shaped[Tensor, "*n"]) -> Shaped[Tensor, "*n"]:
        """The sum over all ranks, bit-identical on each; without a gradient."""
        total = own.detach().clone(memory_format=torch.contiguous_format)
        _exchange(lambda: dist.all_reduce(total, group=self.group))
        return total

    def most(self, own: int, device: torch.device) -> int:
        """The largest number over all ranks."""
        return int(self.all(torch.tensor(own, device=device)).max())

    def least(self, own: int, device: torch.device) -> int:
        """The smallest number over all ranks."""
        return -self.most(-own, device)

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""
        source = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        for tensor in tensors:
            held = tensor.detach()
            sent = held.to(torch.uint8) if held.dtype == torch.bool else held.contiguous()
            _exchange(partial(dist.broadcast, sent, source, self.group))
            if sent is not held:
                held.copy_(sent)

    def text_of_first(self, text: str, device: torch.device) -> str:
        """Send a text from rank 0 to all ranks."""
        size = torch.tensor(len(text.encode()), device=device)
        self.copy_from_first([size])
        content = torch.zeros(int(size), dtype=torch.uint8, device=device)
        if self.own == 0:
            content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
        self.copy_from_first([content])
        return bytes(content.tolist()).decode()

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """The mean of every gradient over the ranks, in one exchange for each precision.

        This is not `DistributedDataParallel`, which must own the forward pass: here one step may encode in
        chunks and also score with a teacher. The cost: gradients are not exchanged while others are
        computed.
        """
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in by_type.values():
            flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients])) / self.number
            means = flat.split([gradient.numel() for gradient in gradients])
            torch._foreach_copy_(gradients, [mean.view_as(own) for mean, own in zip(means, gradients)])


@dataclass(frozen=True)
class Shares:
    """A batch whose pairs are spread over several ranks, in rank order."""

    ranks: Processes
    sizes: list[int]

    @property
    def rows(self) -> slice:
        """The pairs of this rank."""
        first = sum(self.sizes[: self.ranks.own])
        return slice(first, first + self.sizes[self.ranks.own])

    def gather(self, own: Shaped[Tensor, "b *n"]) -> Shaped[Tensor, "B *n"]:
        """The rows of all ranks, without a gradient."""
        most = max(self.sizes)
        padded = pad(own.detach(), (0, 0) * (own.ndim - 1) + (0, most - len(own)))
        return torch.cat([rows[:size] for rows, size in zip(self.ranks.all(padded), self.sizes)])

    def gathered(self, own: Shaped[Tensor, "b *n"], *, same: bool) -> Shaped[Tensor, "B *n"]:
        """The rows of all ranks with their gradients; `same` if every rank computes the same from them."""
        return _Gathered.apply(own, self, same) if own.is_floating_point() else self.gather(own)


class _Gathered(torch.autograd.Function):
    """The rows of all ranks; gradients come from all of them, or are the same on each."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, shares: Shares, same: bool) -> Tensor:
        ctx.shares, ctx.same = shares, same
        return shares.gather(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ranks = ctx.shares.ranks
        every = gradients[0] if ctx.same else ranks.sum(gradients[0])
        return every[ctx.shares.rows] * (ranks.number if ctx.same else 1), None, None


class _Total(torch.autograd.Function):
    """The sum over all ranks, which each rank uses in its own way."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: Processes) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.sum(gradients[0]), None


def total(own: Shaped[Tensor, "*n"], ranks: Processes) -> Shaped[Tensor, "*n"]:
    """The sum over all ranks with its gradient."""
    return _Total.apply(own, ranks)


def _exchange(call: Callable[[], ResultT]) -> ResultT:
    try:
        return call()
    except RuntimeError as error:  # the backends raise nothing more precise
        if "gloo" in str(error) or isinstance(error, dist.DistError):
            said = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0])  # without the line of gloo's source
            raise SelhnError(
                f"another process of this run has ended ({said.partition('. ')[0][:200]}): "
                "all processes stop; resume the run from its last checkpoint"
            ) from None
        raise


def launched() -> int:
    """How many processes `torchrun`, or another launcher that sets the same variables, has started."""
    named = all(name in os.environ for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    return int(os.environ.get("WORLD_SIZE", 1)) if named and dist.is_available() else 1


def local_device(device: torch.device) -> torch.device:
    """One GPU for each process on a machine, unless a device was named."""
    if device.type != "cuda" or device.index is not None or launched() == 1:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


@contextmanager
def joined() -> Iterator[Processes | None]:
    """Connect to the other processes that `torchrun` has started; None if there are none.

    A group that is already open is used and stays open. If processes fail, the first one says why and
    the others end in silence.
    """
    if launched() == 1 or dist.is_initialized():
        yield Processes.of()
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(local_device(torch.device("cuda")))
    # NCCL refuses two processes on one GPU.
    apart = gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    store, rank, number = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if apart and dist.is_nccl_available() else "gloo",
        store=PrefixStore("selhn/group", store), rank=rank, world_size=number, timeout=TIMEOUT,
    )  # fmt: skip
    try:
        yield Processes.of()
    except (SelhnError, OSError):
        if _is_first_to_fail(store):
            raise
        raise SystemExit(2) from None
    finally:
        with suppress(RuntimeError):  # the others may be gone
            dist.destroy_process_group()


def _is_first_to_fail(store: Store) -> bool:
    try:
        return store.add(FAILED, 1) == 1
    except RuntimeError:  # the process that keeps it is gone
        return True
