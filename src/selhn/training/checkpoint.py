"""Exact resume: weights, optimiser, random state and position, in safetensors and JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import require_kind, require_settings
from selhn.diagnose import StallAlarm
from selhn.runs import RunFolder, load_weights
from selhn.runs.weights import weights_of
from selhn.training.adamw import AdamW
from selhn.training.config import TrainConfig, respelled
from selhn.training.optim import flatten_optimizer, unflatten_optimizer
from selhn.training.protocols import Protocol

LOSS, PROTOCOL, AVERAGE = "loss.", "protocol.", "average."  # prefixes of their tensors
DEFAULTS = {key: repr(value) for key, value in asdict(TrainConfig()).items()}
"""Values of settings that an older checkpoint does not have, from before they existed."""


@dataclass(frozen=True)
class Position:
    """The position of a run: `step` steps are done, `step_in_epoch` of them in epoch `epoch`."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    best_rsum: float = -1.0
    best_epoch: int = -1
    log_position: int = 0


@dataclass(frozen=True)
class Checkpoints:
    """The full state of a run, so that it can be saved and resumed exactly."""

    folder: RunFolder
    identity: Mapping[str, str]
    protocol: Protocol
    optimizer: AdamW
    alarm: StallAlarm | None = None

    def save(self, position: Position) -> None:
        if self.folder.path is None:
            return
        moments, groups = flatten_optimizer(self.optimizer)
        tensors = {**moments, "rng.cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            tensors["rng.cuda"] = torch.cuda.get_rng_state()
        loss = self.protocol.loss
        of_loss = weights_of(loss) if isinstance(loss, nn.Module) else {}
        averaged = {} if self.protocol.average is None else self.protocol.average.state()
        for prefix, state in ((LOSS, of_loss), (PROTOCOL, self.protocol.state()), (AVERAGE, averaged)):
            tensors |= {prefix + name: tensor.contiguous() for name, tensor in state.items()}
        heard = None if self.alarm is None else asdict(self.alarm)
        content = {"position": asdict(position), "identity": self.identity, "groups": groups, "alarm": heard}
        # The epoch is in the name: the end of an epoch and its last step are two positions at one step.
        name = f"step_{position.step:08}_epoch_{position.epoch:04}"
        self.folder.write_checkpoint(name, self.protocol.model, tensors, content)

    def load(self) -> tuple[Position, list[str]]:
        """Load the newest undamaged checkpoint; reports the damaged ones it skipped."""
        latest, tensors, content, skipped = next(self.folder.read_checkpoints())
        said = [f"{skipped}. Continuing from the checkpoint before, {latest.name}."] if skipped else []
        try:
            there, groups, heard = (content[key] for key in ("identity", "groups", "alarm"))
            position, there = Position(**content["position"]), {**DEFAULTS, **respelled(there)}
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"the checkpoint {latest} is damaged ({error}): start the run again") from None
        changed = [
            f"{key} was {there.get(key)}, is {own}"
            for key, own in self.identity.items()
            if there.get(key) != own
        ]
        if changed:
            why = "; ".join(changed)
            raise SelhnError(f"{latest} belongs to another run ({why}): resume with the same settings")
        if position.log_position and not self.folder.log_path.exists():
            said.append(f"{self.folder.log_path} is missing: the log begins again at step {position.step}.")
            position = replace(position, log_position=0)
        position = self._with_best(position, said)
        load_weights(self.protocol.model, latest / "model.safetensors")
        unflatten_optimizer(self.optimizer, tensors, groups)
        kept = _named(PROTOCOL, tensors)
        if isinstance(self.protocol.loss, nn.Module):
            # Older checkpoints store a loss's parameters among the tables of its protocol.
            self.protocol.loss.load_state_dict(_named(LOSS, {**tensors, **kept}), strict=False)
        self.protocol.load_state(kept)
        if self.protocol.average is not None:
            self.protocol.average.load_state(_named(AVERAGE, tensors))
        if self.alarm is not None:
            vars(self.alarm).update(_of_alarm(heard or {}))
        torch.set_rng_state(tensors["rng.cpu"])
        if "rng.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["rng.cuda"])
        return position, said

    def _with_best(self, position: Position, said: list[str]) -> Position:
        """Verify the best model; if it is damaged, take it from the checkpoint of its epoch."""
        model, average, best = self.protocol.model, self.protocol.average, self.folder.file("best")
        if position.best_epoch < 0:
            return position
        try:
            self.folder.verify_best(model)
            return position
        except (Damaged, NotFound) as wrong:
            reason = str(wrong)
        for path, tensors, content, _ in self.folder.read_checkpoints():
            there = Position(**content["position"])
            if (there.epoch, there.step_in_epoch) == (position.best_epoch + 1, 0):
                load_weights(model, path / "model.safetensors")
                if average is not None:
                    average.load_state(_named(AVERAGE, tensors))
                self.folder.keep_best(model if average is None else average.current())
                said.append(f"{reason}. It was written again from the checkpoint {path.name}.")
                return position
        if best.exists():
            raise Damaged(
                f"{reason}; no checkpoint has the weights of epoch {position.best_epoch + 1}. Restore "
                f"{best}, or remove it to continue: the best of the epochs from now on is kept then"
            )
        said.append(f"{reason}. The best of the epochs from now on is kept.")
        return replace(position, best_rsum=-1.0, best_epoch=-1)


def _of_alarm(heard: Any) -> dict[str, Any]:
    """The stall alarm's part of a checkpoint; values of wrong types are refused."""
    try:
        names = {field.name for field in fields(StallAlarm)}
        known = {name: value for name, value in dict(heard).items() if name in names}
        require_settings("it", StallAlarm, known)
        for mean in known.get("means", {}).values():
            require_kind("a running mean", mean, float)
    except (ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"the checkpoint's stall alarm cannot be read ({error}): start the run again") from None
    return known


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
