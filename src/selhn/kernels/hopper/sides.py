"""What the fused kernels of scores serve, and what their host files share: statistics, the anchors along a side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.ops.gpu import fusable

Reduced = dict[str, tuple[Tensor, Tensor | None]]
"""Statistics of the anchors along one side; a maximum comes with the index of its winner, -1 for none."""
Weights: TypeAlias = tuple[Float[Tensor, " R"], Float[Tensor, " C"]]
Sums: TypeAlias = tuple[Float[Tensor, "S R"], Float[Tensor, "S C"]]
Asked: TypeAlias = Mapping[str, tuple[float, ...]]
"""Names of statistics with their constants."""
HALF = (torch.float16, torch.bfloat16)
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "hardest": (),
    "hardest_below": (),
    "hardest_up_to": (),
    "hinge_sum": ("margin",),
    "log_sum_exp": ("temperature",),
    "softplus_sum": ("temperature", "bias"),
}
"""The statistics that the kernels have, and what their constants are called here."""
MAXIMA = ("hardest", "hardest_below", "hardest_up_to")
REDUCTIONS: Mapping[str, str] = {"hinge_sum": "sum", "log_sum_exp": "logsumexp", "softplus_sum": "sum"}
"""How the values of the other statistics over parts of the negatives become one."""


@dataclass(frozen=True)
class Constants:
    """What the statistics of a launch depend on besides the scores."""

    margin: float = 0.0
    temperature: float = 1.0
    bias: float = 0.0

    def steepness(self, name: str) -> float:
        """The largest derivative of a statistic by a score."""
        return 1.0 if name == "hinge_sum" else 1 / self.temperature


@dataclass(frozen=True)
class Side:
    """The anchors along one side: embeddings, image labels, and what scores are compared with.

    `level` is the positive score in the forward pass; in the backward pass the value of a log-sum-exp.
    """

    emb: Float[Tensor, "A d"]
    label: Int[Tensor, " A"]
    level: Float[Tensor, " A"]

    def __len__(self) -> int:
        return len(self.emb)

    def __getitem__(self, part: slice | Tensor) -> "Side":
        return Side(self.emb[part], self.label[part], self.level[part])


def empty(name: str) -> float:
    """The value over no negatives."""
    return 0.0 if REDUCTIONS[name] == "sum" else -torch.inf


def over_parts(name: str, values: Float[Tensor, "P A"]) -> Float[Tensor, " A"]:
    """The value over all negatives from those over parts of them."""
    return values.sum(dim=0) if REDUCTIONS[name] == "sum" else values.logsumexp(dim=0)


def merged(name: str, first: Tensor, second: Tensor) -> Tensor:
    """The value over all negatives from those over two parts."""
    return first + second if REDUCTIONS[name] == "sum" else torch.logaddexp(first, second)


def spans(length: int, size: int) -> Iterator[slice]:
    """The parts of a length, each of a size or less."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def can_fuse(emb: Float[Tensor, "B d"], dtype: torch.dtype) -> bool:
    """Whether the kernels serve embeddings that are multiplied as `dtype`."""
    if not (fusable(emb) and dtype in HALF and torch.version.cuda):
        return False
    # Older GPUs lack the copy engine and the shared memory that the kernels are laid out for.
    return torch.cuda.get_device_capability(emb.device) >= (9, 0)


def constants_of(asked: Asked) -> Constants | None:
    """The constants of a launch; None if the kernels lack a statistic, or two statistics differ in a constant."""
    found: dict[str, float] = {}
    for name, values in asked.items():
        if name not in PARAMETERS:
            return None
        for parameter, value in zip(PARAMETERS[name], values):
            if found.setdefault(parameter, value) != value:
                return None
    return Constants(**found)
