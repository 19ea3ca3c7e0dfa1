"""Weights from untrusted files: reads are bounded, and tensors are never larger than the file."""

import io
import pickle
import struct
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules import module as registration
from torch.overrides import TorchFunctionMode

from selhn.base.errors import Damaged, SelhnError
from selhn.base.untrusted import require_file

ModuleT = TypeVar("ModuleT", bound=nn.Module)
LARGEST_WEIGHT = 1e18
"""Largest weight: the product of two larger ones overflows float32. Trained weights are below 1,000."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_UNBUILDABLE = (
    ValueError,
    RuntimeError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    LookupError,
)
"""Exceptions that modules raise for unforeseen settings."""

_BAD_CHECKPOINT = (
    RuntimeError, EOFError, ValueError, LookupError, TypeError, AssertionError, AttributeError, OverflowError,
    MemoryError, OSError, NotImplementedError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""What `torch.load` raises for files with changed or missing bytes, found by changing them at random."""


def read_tensors(path: Path, remedy: str = "copy it again") -> dict[str, Tensor]:
    """The tensors of a safetensors file by name; its format cannot claim more than the file holds."""
    require_file(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path} is cut off or damaged ({error}): {remedy}") from None


def read_checkpoint(path: Path, classes: Sequence[type] = ()) -> Any:
    """What `torch.save` wrote, if it has only plain values, tensors and these classes; no code in it is run.

    Tensors are views of the file, or of its bytes: `check_sizes` before they are copied.
    """
    require_file(path)
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\3\4"
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(classes)):
            warnings.simplefilter(
                "ignore", UserWarning
            )  # torch warns about pickle protocols before it raises an error for the same reason
            if is_archive:
                _check_archive(path)
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            # In the older format every read is bounded by these bytes, whatever lengths it claims.
            return torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise SelhnError(
            f"{path} holds more than weights, or is not a checkpoint, and was not opened: such a file can "
            f"run any program on your machine ({_first_line(error)}); save its state dict alone"
        ) from error
    except SelhnError:
        raise
    except _BAD_CHECKPOINT as error:
        raise Damaged(
            f"{path} is cut off or not a checkpoint ({_first_line(error)}): copy it again"
        ) from error


def _check_archive(path: Path) -> None:
    """Refuse what torch does not write: compressed parts of any size, and parts with other checksums."""
    with zipfile.ZipFile(path) as archive:
        members, size = archive.infolist(), path.stat().st_size
        if archive.comment or any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise SelhnError(
                f"{path} is a compressed archive, which torch does not write: save it with torch.save"
            )
        if sum(member.file_size for member in members) > size:
            raise Damaged(
                f"the parts of {path} claim more than the {size:,} bytes of the file: copy it again"
            )
        changed = archive.testzip()
    if changed is not None:
        raise Damaged(f"{changed} in {path} is not what was written (its checksum differs): copy it again")


def check_sizes(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that are larger than their file: they are views that repeat the same numbers."""
    size = path.stat().st_size
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise SelhnError(
                f"{name} in {path} is a sparse, quantised or empty kind of tensor: save plain ones"
            )
        if tensor.numel() == 0:
            raise Damaged(
                f"{name} in {path} has the shape {tuple(tensor.shape)}, which holds nothing: copy it again"
            )
    # Several names may share one tensor, as with tied weights.
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > 2 * size:
        raise Damaged(
            f"the tensors of {path} are larger than its {size:,} bytes: save them with torch.save again"
        )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def built_with(build: Callable[[], ModuleT], weights: Mapping[str, Tensor], where: str) -> ModuleT:
    """The module that `build` makes from untrusted settings, with the weights of a file, which have to fit.

    It is built without memory, and abandoned as soon as it has too many parts for the weights; then the weights take
    their places. It is built again only if it also has tensors that are not weights, or one weight under two names.
    """
    try:
        with torch.device("meta"), NothingDrawn(), _no_larger_than(weights):
            module = build()
            wanted = module.state_dict()
    except _UNBUILDABLE as error:
        reason = str(error)[:200]
        raise Damaged(
            f"{where}: no model can be built with the settings in config.json ({reason})"
        ) from error
    check_fits(wanted, weights, where)
    # Copies: what was read may be a view of a file that changes later.
    own = {name: weights[name].to(tensor.dtype, copy=True) for name, tensor in wanted.items()}
    module.load_state_dict(own, assign=True)
    if _has_more_than_weights(module):
        with torch.random.fork_rng(devices=[]), NothingDrawn():  # leaves the caller's generator unchanged
            module = build()
        module.load_state_dict(own)
    return module


def _has_more_than_weights(module: nn.Module) -> bool:
    names, several = dict(module.named_parameters(remove_duplicate=False)), list(module.parameters())
    attributes = (value for part in module.modules() for value in vars(part).values())
    others = (*several, *module.buffers(), *(value for value in attributes if isinstance(value, Tensor)))
    return len(names) > len(several) or any(tensor.is_meta for tensor in others)


class NothingDrawn(TorchFunctionMode):
    """Set weights to 0 instead of drawing them: they are read afterwards, and drawing takes longer."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_):
            with torch.no_grad():  # uninitialised values may make `trunc_normal_` redraw forever
                return (args[0] if args else kwargs["tensor"]).zero_()
        return func(*args, **(kwargs or {}))


@contextmanager
def _no_larger_than(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop a build that makes more modules, parameters and buffers than these weights can need."""
    # Modules without weights (dropout, lists) count too: our models have about two parts per weight.
    left, builder = 1000 + 10 * len(weights), threading.get_ident()

    def count(*_: Any) -> None:
        nonlocal left
        if threading.get_ident() == builder:  # torch calls this for the modules of every thread
            left -= 1
            if left < 0:
                raise SelhnError(f"they describe many more parts than the {len(weights)} weights in the file")

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
            f"{where} holds weights that are not finite numbers, or beyond 1e18 ({endless[0]}): scores would "
            "be NaN; copy it again, or train again with a lower learning rate"
        )


def _converts(found: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether one dtype can be converted to the other without losing its meaning."""
    if wanted.is_floating_point:
        return found in _FLOATS
    return not (found.is_floating_point or found.is_complex)


def _is_finite(weight: Tensor, kind: torch.dtype) -> bool:
    if not kind.is_floating_point or weight.numel() == 0:
        return True
    # A NaN makes both minimum and maximum NaN. Twenty times as fast as `isfinite`.
    low, high = torch.aminmax(weight)
    most = min(LARGEST_WEIGHT, torch.finfo(kind).max)
    return bool(low >= -most) and bool(high <= most)
