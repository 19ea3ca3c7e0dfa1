"""Weights that others wrote: read within bounds, and only into what is no larger than they are."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules import module as registration

from selhn.base.errors import Damaged, SelhnError
from selhn.base.untrusted import require_file

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_UNBUILDABLE = (ValueError, RuntimeError, TypeError, AttributeError, ArithmeticError, AssertionError, LookupError)
"""What modules raise for settings that no one has foreseen."""


def read_tensors(path: Path, remedy: str = "copy it again") -> dict[str, Tensor]:
    """The tensors of a safetensors file by name; its format cannot claim more than the file holds."""
    require_file(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path} is cut off or damaged ({error}): {remedy}") from None


def require_fit(build: Callable[[], nn.Module], weights: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights that are not those of the module that `build` makes from a stranger's settings.

    It is made without memory, and abandoned as soon as it has more parts than the weights have.
    """
    try:
        with torch.device("meta"), _no_larger_than(weights):
            wanted = build().state_dict()
    except _UNBUILDABLE as error:
        reason = str(error)[:200]
        raise Damaged(f"{where}: no model can be built with the settings in config.json ({reason})") from error
    check_fits(wanted, weights, where)


@contextmanager
def _no_larger_than(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop whoever builds more modules, parameters and buffers than belong to so many weights."""
    # Modules without weights (dropout, lists) count too: our models have about two parts per weight.
    left, builder = 1000 + 10 * len(weights), threading.get_ident()

    def count(*_: Any) -> None:
        nonlocal left
        if threading.get_ident() == builder:  # torch calls this for the modules of every thread
            left -= 1
            if left < 0:
                raise SelhnError(f"they ask for many more parts than the {len(weights)} weights beside them")

    hooks = [
        registration.register_module_module_registration_hook(count),
        registration.register_module_parameter_registration_hook(count),
        registration.register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_fits(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights that are not those of this model, or not numbers, and say which."""
    both = [key for key in wanted if key in found]
    problems = {
        "missing": [key for key in wanted if key not in found],
        "unexpected": [key for key in found if key not in wanted],
        "other shapes": [
            f"{key} {tuple(found[key].shape)} instead of {tuple(wanted[key].shape)}"
            for key in both
            if found[key].shape != wanted[key].shape
        ],
        "other kinds of numbers": [
            f"{key} {str(found[key].dtype).removeprefix('torch.')}"
            for key in both
            if not _converts(found[key].dtype, wanted[key].dtype)
        ],
    }
    told = [
        f"{what}: {', '.join(keys[:5])}" + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        for what, keys in problems.items()
        if keys
    ]
    if told:
        raise SelhnError(f"{where} holds the weights of another model; {'; '.join(told)}")
    endless = [key for key in both if not _is_finite(found[key], wanted[key].dtype)]
    if endless:
        raise Damaged(
            f"{where} holds weights that are not finite numbers ({endless[0]}), so every score would be NaN: "
            "copy it again, or train again with a lower learning rate"
        )


def _converts(found: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether numbers of one kind can become the other's without losing what they are."""
    if wanted.is_floating_point:
        return found in _FLOATS
    return not (found.is_floating_point or found.is_complex)


def _is_finite(weight: Tensor, kind: torch.dtype) -> bool:
    if not kind.is_floating_point or weight.numel() == 0:
        return True
    # Within the range that the model has; a NaN makes both ends NaN. Twenty times as fast as `isfinite`.
    low, high = torch.aminmax(weight)
    limits = torch.finfo(kind)
    return bool(low >= limits.min) and bool(high <= limits.max)
