"""The weights of any module in one safetensors file."""

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from selhn.base.tensor_files import check_fits, read_tensors


def save_weights(model: nn.Module, path: Path) -> None:
    """Write every parameter and buffer of any module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights_of(model), path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Read what `save_weights` wrote into a module of the same shapes."""
    weights = read_tensors(path, "remove the run and start it again")
    check_fits(weights_of(model), weights, str(path))
    model.load_state_dict(weights, strict=False)  # names that share a tensor are stored once


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once, even if two names share one tensor, which safetensors refuses."""
    seen: set[int] = set()
    weights = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() in seen and tensor.numel():
            continue
        seen.add(tensor.data_ptr())
        weights[name] = tensor.detach().contiguous()
    return weights
