"""Exact resume: a run's state is saved, and loaded from what is undamaged."""

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import require_settings
from selhn.runs import RunFolder
from selhn.training.state import Position, RunState


def save_checkpoint(folder: RunFolder, state: RunState) -> None:
    """Write a run's state into its folder, if it has one."""
    at = state.position
    if folder.path is not None:
        # The epoch is in the name: the end of an epoch and its last step are two positions at one step.
        folder.checkpoints.write(f"step_{at.step:08}_epoch_{at.epoch:04}", state.state_dict())


def load_checkpoint(folder: RunFolder, state: RunState) -> list[str]:
    """Load the newest undamaged checkpoint into a run's state; reports what was damaged."""
    path, content, skipped = next(folder.checkpoints.read())
    said = [f"{skipped}. Continuing from the checkpoint before, {path.name}."] if skipped else []
    try:
        require_settings("the position", Position, content["position"])
        there, position = content["identity"], Position(**content["position"])
        changed = [
            f"{key} was {there.get(key)}, is {own}"
            for key, own in state.identity.items()
            if there.get(key) != own
        ]
        if changed:
            why = "; ".join(changed)
            raise SelhnError(f"{path} belongs to another run ({why}): resume with the same settings")
        if position.log_position and not folder.log_path.exists():
            said.append(f"{folder.log_path} is missing: the log begins again at step {position.step}.")
            position.log_position = 0
        _check_best(folder, state, position, said)
        state.load_state_dict(content)
    except SelhnError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        why = str(error).splitlines()[-1].strip()
        raise Damaged(
            f"{path} does not fit this run ({why}): resume with the model and the loss that it began with"
        ) from None
    state.position = position
    return said


def _check_best(folder: RunFolder, state: RunState, position: Position, said: list[str]) -> None:
    """Verify the best model; if it is damaged, take it from the checkpoint of its epoch."""
    best = folder.file("best")
    if position.best_epoch < 0:
        return
    try:
        folder.verify_best(state.model)
        return
    except (Damaged, NotFound) as wrong:
        reason = str(wrong)
    for path, content, _ in folder.checkpoints.read():
        there = Position(**content["position"])
        if (there.epoch, there.step_in_epoch) == (position.best_epoch + 1, 0):
            state.load_state_dict(content)
            folder.keep_best(state.judged)
            said.append(f"{reason}. It was written again from the checkpoint {path.name}.")
            return
    if best.exists():
        raise Damaged(
            f"{reason}; no checkpoint has the weights of epoch {position.best_epoch + 1}. Restore "
            f"{best}, or remove it to continue: the best of the epochs from now on is kept then"
        )
    said.append(f"{reason}. The best of the epochs from now on is kept.")
    position.best_rsum, position.best_epoch = -1.0, -1
