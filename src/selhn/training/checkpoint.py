"""Exact resume: weights, optimiser, random state and position, in safetensors and JSON.

`checkpoints/step_00000123_epoch_0004/` is written under another name and renamed when complete; `checkpoints/latest`
then names it. Whatever happens in between, a full disk or kill -9, the checkpoint before is still there.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from selhn.base.errors import SelhnError

if TYPE_CHECKING:
    from selhn.training.protocols import Protocol

PROTOCOL = "protocol."  # before the names of what a protocol keeps


@dataclass(frozen=True)
class Position:
    """Where a run stands: `step` steps are done, `step_in_epoch` of them in epoch `epoch`."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    best_rsum: float = -1.0
    best_epoch: int = -1
    log_position: int = 0

    def after_step(self) -> "Position":
        """One step further."""
        return replace(self, step=self.step + 1, step_in_epoch=self.step_in_epoch + 1)

    def after_epoch(self) -> "Position":
        """At the start of the next epoch."""
        return replace(self, epoch=self.epoch + 1, step_in_epoch=0)


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    identity: Mapping[str, str],
    alarm: Mapping[str, Any] | None,
    protocol: "Protocol | None" = None,
) -> None:
    """Write the whole training state; the previous checkpoint is removed only when this one is complete."""
    # The epoch is in the name because the end of an epoch and its last step are two positions at one step.
    name = f"step_{position.step:08}_epoch_{position.epoch:04}"
    temporary, final = folder / f".{name}.partial", folder / name
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        moments, groups = flatten_optimizer(optimizer)
        state = {} if protocol is None else protocol.state()
        tensors = {**moments, **{PROTOCOL + name: tensor.contiguous() for name, tensor in state.items()}}
        written = {"position": asdict(position), "identity": identity, "groups": groups, "alarm": alarm}
        save_weights(model, temporary / "model.safetensors")
        save_file({**tensors, **_random_state()}, temporary / "training.safetensors")
        (temporary / "training.json").write_text(json.dumps(written, indent=1))
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        (folder / ".latest.partial").write_text(name + "\n")
        (folder / ".latest.partial").replace(folder / "latest")
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(
            f"the checkpoint {final} could not be written ({error}): make room on the disk and resume; "
            "the checkpoint before it is untouched"
        ) from error
    for old in folder.glob("step_*"):
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    folder: Path | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, str],
    protocol: "Protocol | None" = None,
) -> tuple[Position, dict[str, Any] | None]:
    """Put a run back where its latest checkpoint left it; returns the position and the state of the stall alarm."""
    if folder is None or not (folder / "latest").exists():
        raise SelhnError(f"{folder} has no checkpoint to resume from: start the run without resume")
    latest = folder / (folder / "latest").read_text().strip()
    try:
        written = json.loads((latest / "training.json").read_text())
        state = load_file(latest / "training.safetensors")
        position, there, groups, alarm = (written[key] for key in ("position", "identity", "groups", "alarm"))
        position = Position(**position)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise SelhnError(f"the checkpoint {latest} is damaged ({error}): remove the run and start it again") from None
    changed = [f"{key} was {there.get(key)}, is {value}" for key, value in identity.items() if there.get(key) != value]
    if changed:
        raise SelhnError(f"{latest} belongs to another run ({'; '.join(changed)}): resume with the same settings")
    load_weights(model, latest / "model.safetensors")
    unflatten_optimizer(optimizer, state, groups)
    if protocol is not None:
        own = {name.removeprefix(PROTOCOL): value for name, value in state.items() if name.startswith(PROTOCOL)}
        protocol.load_state(own)
    torch.set_rng_state(state["rng.cpu"])
    if "rng.cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["rng.cuda"])
    return position, alarm


def save_weights(model: nn.Module, path: Path) -> None:
    """Every parameter and buffer of any module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(_weights(model), path)


def load_weights(model: nn.Module, path: Path) -> None:
    """What `save_weights` wrote, into a module of the same shape."""
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise SelhnError(f"{path} is damaged ({error}): remove the run and start it again") from None
    own = _weights(model)
    if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
        raise SelhnError(f"{path} has the weights of another model: resume with the model the run began with")
    model.load_state_dict(weights, strict=False)  # names that share a tensor are stored once


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once, also where two names share one tensor, which safetensors refuses."""
    seen: dict[int, str] = {}
    weights = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() in seen and tensor.numel():
            continue
        seen[tensor.data_ptr()] = name
        weights[name] = tensor.detach().contiguous()
    return weights


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The moments of an optimiser as tensors by name, and its settings."""
    state = optimizer.state_dict()
    tensors = {
        f"optimizer.{index}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, values in state["state"].items()
        for key, value in values.items()
    }
    groups = [
        {key: float(value) if isinstance(value, Tensor) else value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    return tensors, groups


def unflatten_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """The inverse of `flatten_optimizer`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            index, _, key = rest.partition(".")
            state.setdefault(int(index), {})[key] = tensor
    for saved, own in zip(groups, optimizer.param_groups):
        # A rate that lives on the device stays there.
        saved.update({key: value.fill_(saved[key]) for key, value in own.items() if isinstance(value, Tensor)})
        # How the update is computed is a matter of the device, which may be another one.
        saved.update({key: own[key] for key in ("fused", "capturable", "foreach") if key in own})
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _random_state() -> dict[str, Tensor]:
    state = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["rng.cuda"] = torch.cuda.get_rng_state()
    return state
