import json

import pytest
import torch
from safetensors import SafetensorError

from selhn.base.errors import Damaged
from selhn.base.sealed import seal
from selhn.diagnose import StallAlarm
from selhn.runs import RunFolder, checkpoint_files
from selhn.training.adamw import AdamW
from selhn.training.checkpoint import Checkpoints, Position
from selhn.training.optim import flatten_optimizer, unflatten_optimizer
from selhn.training.protocols import Protocol

IDENTITY = {"model": "linear", "lr": "0.1"}


def trained(seed=0, transposed=False):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    if transposed:  # a weight that is not contiguous in memory
        model.weight = torch.nn.Parameter(model.weight.detach().T.contiguous().T)
    optimizer = AdamW([{"params": list(model.parameters())}], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return model, optimizer


class WeightsAlone(Protocol):
    """No data, and a loss that learns nothing."""

    def __init__(self, model):
        self.model, self.loss, self.tables = model, None, {}


def checkpoints(tmp_path, model, optimizer, identity=IDENTITY, **parts):
    return Checkpoints(RunFolder(tmp_path), identity, WeightsAlone(model), optimizer, **parts)


@pytest.mark.parametrize("transposed", [False, True])
def test_round_trip(tmp_path, transposed):
    model, optimizer = trained(transposed=transposed)
    (tmp_path / "log.jsonl").write_text("x" * 77)
    position = Position(epoch=1, step_in_epoch=4, step=9, log_position=77)
    checkpoints(tmp_path, model, optimizer, alarm=StallAlarm(0.2, last=7)).save(position)
    expected = torch.rand(3)
    other, other_optimizer = trained(1, transposed)
    alarm = StallAlarm(None)
    assert checkpoints(tmp_path, other, other_optimizer, alarm=alarm).load() == (position, [])
    assert alarm == StallAlarm(0.2, last=7)
    assert torch.equal(torch.rand(3), expected), "the random numbers go on where they were"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    ours, theirs = optimizer.state_dict(), other_optimizer.state_dict()
    assert json.dumps(ours["param_groups"]) == json.dumps(theirs["param_groups"])
    for index in ours["state"]:
        for key, value in ours["state"][index].items():
            assert torch.equal(value, theirs["state"][index][key])
    for weights, stepping in ((model, optimizer), (other, other_optimizer)):
        stepping.zero_grad()
        weights(torch.ones(4, 3)).sum().backward()
        stepping.step()
    assert torch.equal(model.weight, other.weight), "the next step is the same"


def test_a_loss_that_names_one_tensor_twice(tmp_path):
    loss = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    loss[1].weight = loss[0].weight
    parts = checkpoints(tmp_path, *trained())
    parts.protocol.loss = loss
    parts.save(Position(step=1))
    with torch.no_grad():
        expected, loss[0].weight[:] = loss[0].weight.clone(), 0
    parts.load()
    assert torch.equal(loss[1].weight, expected)


def test_the_last_two_are_kept(tmp_path):
    parts = checkpoints(tmp_path, *trained())
    (tmp_path / "checkpoints" / ".step_00000002_epoch_0000.partial" / "new").mkdir(parents=True)
    for step in (1, 2, 3):
        parts.save(Position(step=step))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "latest",
        "step_00000002_epoch_0000",
        "step_00000003_epoch_0000",
    ]


def test_the_last_that_is_whole_is_kept(tmp_path):
    """After a resume from the one before, that one stays until the next is written, and the damaged one goes."""
    parts = checkpoints(tmp_path, *trained())
    for step in (1, 5):
        parts.save(Position(step=step))
    (tmp_path / "checkpoints" / "step_00000005_epoch_0000" / "model.safetensors").write_bytes(b"")
    (tmp_path / "checkpoints" / "latest").write_bytes(b"\xff")
    again = checkpoints(tmp_path, *trained())
    position, said = again.load()
    assert position.step == 1
    assert len(said) == 1
    again.save(Position(step=3))
    assert {path.name[:13] for path in (tmp_path / "checkpoints").glob("step*")} == {
        "step_00000001",
        "step_00000003",
    }
    assert checkpoints(tmp_path, *trained()).load() == (Position(step=3), [])


def test_a_full_disk_leaves_the_previous_one(tmp_path, monkeypatch):
    model, optimizer = trained()
    checkpoints(tmp_path, model, optimizer).save(Position(step=1))

    def no_room(*args, **kwargs):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint_files, "save_file", no_room)
    with pytest.raises(
        OSError, match=r"could not be written \(No space left.*free some disk space.*untouched"
    ):
        checkpoints(tmp_path, model, optimizer).save(Position(step=2))
    assert checkpoints(tmp_path, *trained()).load()[0].step == 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "latest",
        "step_00000001_epoch_0000",
    ]


def test_what_cannot_be_resumed(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        checkpoints(tmp_path, *trained()).load()
    checkpoints(tmp_path, *trained()).save(Position(step=1))
    with pytest.raises(ValueError, match="lr was 0.1, is 0.2"):
        checkpoints(tmp_path, *trained(), {**IDENTITY, "lr": "0.2"}).load()
    weights = tmp_path / "checkpoints" / "step_00000001_epoch_0000" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(ValueError, match="is damaged"):
        checkpoints(tmp_path, *trained()).load()


def test_two_positions_at_one_step_do_not_overwrite_each_other(tmp_path):
    parts = checkpoints(tmp_path, *trained())
    parts.save(Position(epoch=0, step=5, step_in_epoch=5))
    parts.save(Position(epoch=1, step=5))
    assert {path.name for path in (tmp_path / "checkpoints").glob("step*")} == {
        "step_00000005_epoch_0000",
        "step_00000005_epoch_0001",
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, groups: tensors.update({"optimizer.0.exp_avg": torch.zeros(2, 3, dtype=torch.int64)}),
        lambda tensors, groups: tensors.update({"optimizer.0.exp_avg": torch.zeros(9)}),
        lambda tensors, groups: tensors.update({"optimizer.7.exp_avg": torch.zeros(9)}),
        lambda tensors, groups: tensors.pop("optimizer.0.exp_avg_sq"),
        lambda tensors, groups: groups[0].update(params=[1, 0]),
        lambda tensors, groups: groups[0].update(lr="much"),
    ],
)
def test_a_forged_optimiser(change):
    _, optimizer = trained()
    tensors, groups = flatten_optimizer(optimizer)
    change(tensors, groups)
    with pytest.raises(Damaged, match="optimiser does not fit"):
        unflatten_optimizer(optimizer, tensors, groups)


@pytest.mark.parametrize("forged", [{"last": [0.9, 0.999]}, {"said": 3}, {"means": {"spread": "x"}}, [1]])
def test_a_forged_alarm(tmp_path, forged):
    checkpoints(tmp_path, *trained(), alarm=StallAlarm(0.2)).save(Position(step=1))
    (folder,) = (tmp_path / "checkpoints").glob("step_*")
    content = json.loads((folder / "training.json").read_text())
    content["alarm"] = {**content["alarm"], **forged} if isinstance(forged, dict) else forged
    (folder / "training.json").write_text(json.dumps(content))
    seal(folder, checkpoint_files.FILES)
    with pytest.raises(Damaged, match="stall alarm"):
        checkpoints(tmp_path, *trained(), alarm=StallAlarm(0.2)).load()


def test_a_checkpoint_with_parts_missing(tmp_path):
    checkpoints(tmp_path, *trained()).save(Position(step=1))
    (tmp_path / "checkpoints" / "step_00000001_epoch_0000" / "training.json").write_text("{}")
    with pytest.raises(ValueError, match="is damaged"):
        checkpoints(tmp_path, *trained()).load()


def test_weights_of_another_model(tmp_path):
    checkpoints(tmp_path, *trained()).save(Position(step=1))
    other = torch.nn.Linear(4, 2)
    with pytest.raises(ValueError, match="weights of another model"):
        checkpoints(tmp_path, other, AdamW([{"params": list(other.parameters())}], lr=0.1)).load()
