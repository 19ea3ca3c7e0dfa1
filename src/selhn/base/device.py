"""Choosing a device by name, and limiting CPU threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from selhn.base.errors import NotFound, SelhnError


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SelhnError(f"device {name!r} needs a GPU and torch sees none: use device=cpu or device=auto")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError
        torch.empty(0, device=device)
    except RuntimeError:
        raise NotFound(f"there is no device {name!r} here: use auto, cpu or cuda") from None
    return device


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter."""
    return next(model.parameters()).device


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one CPU thread for many small computations: waking other threads takes longer than the work."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)
