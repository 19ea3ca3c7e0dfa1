"""A run's state on disk: what is kept, what is read back, and what is refused."""

import re

import pytest
import torch
from model_cases import make_model

from selhn.base.errors import Damaged, Linked, SelhnError
from selhn.diagnose import StallAlarm
from selhn.runs import RunFolder
from selhn.training.checkpoint import load_checkpoint, save_checkpoint
from selhn.training.optim import AdamW
from selhn.training.protocols import Protocol
from selhn.training.state import Position, RunState

IDENTITY = {"model": "linear", "lr": "0.1"}


def trained(seed=0, transposed=False, dim=8):
    torch.manual_seed(seed)
    model = make_model("vse_fc", dim=dim)
    if transposed:  # a weight that is not contiguous in memory
        linear = next(part for part in model.modules() if isinstance(part, torch.nn.Linear))
        linear.weight = torch.nn.Parameter(linear.weight.detach().T.contiguous().T)
    optimizer = AdamW([{"params": list(model.parameters())}], 0.1, 0.0, torch.device("cpu"))
    for _ in range(3):
        take_step(model, optimizer)
    return model, optimizer


def take_step(model, optimizer):
    generator = torch.Generator().manual_seed(7)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)
    optimizer.step()


class WithoutData(Protocol):
    def __init__(self):
        self.tables = {}


def state_of(model, optimizer, loss=torch.mean, alarm=None, identity=IDENTITY, **position):
    return RunState(model, loss, optimizer, None, WithoutData(), alarm, identity, Position(**position))


def save(out, step, **position):
    save_checkpoint(out, state_of(*trained(), step=step, **position))


def load(out, *parts, **more):
    state = state_of(*(parts or trained(1)), **more)
    return state, load_checkpoint(out, state)


def kept(out):
    """(step, epoch) of what is there."""
    names = sorted(path.name for path in (out.path / "checkpoints").iterdir())
    return [tuple(map(int, re.findall(r"\d+", name))) for name in names]


@pytest.fixture
def out(tmp_path):
    return RunFolder(tmp_path)


@pytest.mark.parametrize("transposed", [False, True])
def test_round_trip(out, transposed):
    model, optimizer = trained(transposed=transposed)
    out.log_path.write_text("x" * 77)
    position = {"epoch": 1, "step_in_epoch": 4, "step": 9, "log_position": 77}
    save_checkpoint(out, state_of(model, optimizer, alarm=StallAlarm(0.2, last=7), **position))
    expected = torch.rand(3)
    other, other_optimizer = trained(1, transposed)
    state, said = load(RunFolder(out.path), other, other_optimizer, alarm=StallAlarm(None))
    assert (state.position, said) == (Position(**position), [])
    assert state.alarm == StallAlarm(0.2, last=7)
    assert torch.equal(torch.rand(3), expected), "the random numbers go on where they were"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    for weights, stepping in ((model, optimizer), (other, other_optimizer)):
        take_step(weights, stepping)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_loss_that_names_one_tensor_twice(out):
    loss = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    loss[1].weight = loss[0].weight
    save_checkpoint(out, state_of(*trained(), loss))
    with torch.no_grad():
        expected, loss[0].weight[:] = loss[0].weight.clone(), 0
    load(out, *trained(), loss=loss)
    assert torch.equal(loss[1].weight, expected)


def test_the_last_two_are_kept(out):
    save(out, 1)
    (first,) = out.checkpoints.paths
    for step in (2, 3):
        save(out, step)
    assert kept(out) == [(2, 0), (3, 0)]
    first.touch()  # its process was killed before it was removed
    out.checkpoints.tidy()
    assert kept(out) == [(2, 0), (3, 0)]
    save(out, 3, epoch=1)  # the end of an epoch and its last step are two positions at one step
    assert kept(out) == [(3, 0), (3, 1)]


def test_the_last_that_is_whole_is_kept(out):
    """After a resume from the one before, that one stays until the next is written, and the damaged one goes."""
    for step in (1, 5):
        save(out, step)
    max(out.checkpoints.paths).write_bytes(b"")
    again = RunFolder(out.path)
    state, said = load(again)
    assert state.position.step == 1
    assert len(said) == 1
    save(again, 3)
    assert kept(out) == [(1, 0), (3, 0)]
    assert load(RunFolder(out.path))[0].position == Position(step=3)


def test_a_full_disk_leaves_the_previous_one(out, monkeypatch):
    save(out, 1)

    class Full:
        def write(self, content):
            raise OSError(28, "No space left on device")

        def flush(self):
            """Nothing to do."""

    monkeypatch.setattr("selhn.runs.checkpoints.write_whole", lambda path, write: write(Full()))
    with pytest.raises(OSError, match="No space left"):
        save(out, 2)
    assert load(RunFolder(out.path))[0].position.step == 1
    assert kept(out) == [(1, 0)]


def test_what_cannot_be_resumed(out):
    save(out, 1)
    with pytest.raises(SelhnError):
        load(out, identity={**IDENTITY, "lr": "0.2"})
    with pytest.raises(Damaged, match="does not fit"):
        load(out, *trained(dim=4))
    with pytest.raises(Damaged, match="does not fit"):
        load(out, loss=torch.nn.Linear(1, 1))
    (path,) = out.checkpoints.paths
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(Damaged):
        load(out)


@pytest.mark.parametrize(
    "change",
    [
        lambda moments: moments[0].update(exp_avg=torch.zeros(9)),
        lambda moments: moments[0].pop("exp_avg_sq"),
        lambda moments: moments.update({7: moments[0]}),
    ],
)
def test_moments_of_other_weights(change):
    """torch's own optimiser takes them, and its update then reads beyond their memory."""
    _, optimizer = trained()
    saved = optimizer.state_dict()
    change(saved["state"])
    with pytest.raises(Damaged):
        trained(1)[1].load_state_dict(saved)


def test_code_in_a_checkpoint_is_not_run(out):
    save(out, 1)
    (path,) = out.checkpoints.paths
    torch.save({"log": None, "model": print}, path)
    with pytest.raises(Damaged, match="was not opened"):
        load(out)


@pytest.mark.parametrize("linked", ["the folder", "the file"])
def test_links_are_not_followed(out, tmp_path_factory, linked):
    save(out, 1)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "a"
    path = out.checkpoints.paths[0] if linked == "the file" else out.path / "checkpoints"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    for work in (lambda: load(out), lambda: save(out, 2), lambda: out.check(resume=False)):
        with pytest.raises(Linked):
            work()
    assert elsewhere.exists()
