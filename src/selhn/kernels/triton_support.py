"""Whether Triton kernels can be used here; nobody without a GPU needs Triton."""

import importlib.util
from functools import cache

from torch import Tensor


@cache
def has_triton() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec("triton") is not None


def fusable(*tensors: Tensor) -> bool:
    """Whether Triton kernels can work on these tensors."""
    return all(tensor.is_cuda for tensor in tensors) and has_triton()
