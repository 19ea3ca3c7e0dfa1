"""Which statistics of which embeddings the fused kernels of scores serve; this file needs no Triton."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.ops.gpu import HALVES, fusable

Asked: TypeAlias = Mapping[str, tuple[float, ...]]
"""Names of statistics with their constants."""
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "hardest": (),
    "hardest_below": (),
    "hardest_up_to": (),
    "hinge_sum": ("margin",),
    "log_sum_exp": ("temperature",),
    "softplus_sum": ("temperature", "bias"),
}
"""The statistics that the kernels have, first the maxima, and what their constants are called here."""


class Constants(NamedTuple):
    """What the statistics of a launch depend on besides the scores."""

    margin: float
    scale: float
    bias: float


def can_fuse(emb: Float[Tensor, "B d"], dtype: torch.dtype) -> bool:
    """Whether the kernels serve embeddings that are multiplied as `dtype`."""
    if not (fusable(emb) and dtype in HALVES and torch.version.cuda):
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
    return Constants(found.get("margin", 0.0), 1 / found.get("temperature", 1.0), found.get("bias", 0.0))
