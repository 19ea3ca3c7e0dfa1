"""Several processes with parts of a batch train as one with all of it: losses, whole runs, and what is refused."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ranks_program
import torch
from programs import Program
from typer.testing import CliRunner

from selhn.base.errors import SelhnError
from selhn.base.ranks import joined
from selhn.cli import app
from selhn.losses import TripletHN, TripletSelHN
from selhn.models import load_model
from selhn.runs import RunFolder
from selhn.training import get_recipe, override, run

PROGRAM = Path(ranks_program.__file__)
FIRST = slice(0, 1 + 6 * 5 + 6 + 6 * 4 + 6)
"""Value and gradients of the first step, in what the program leaves; the rest are weights after its last step."""


def started(ranks, *command):
    """The processes of a run, with the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    there = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    return [
        Program(*command, env={**os.environ, **there, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]


def ended(processes):
    """What they printed and how they ended."""
    with contextlib.ExitStack() as all_ended:
        for process in processes:
            all_ended.enter_context(process)
        said = [process.communicate(timeout=300) for process in processes]
    return (
        [process.returncode for process in processes],
        "".join(out for out, _ in said),
        "".join(e for _, e in said),
    )


@pytest.fixture(
    scope="module", params=[(2, 2), *(pytest.param((n, 20), marks=pytest.mark.slow) for n in (2, 4))]
)
def together(request, tmp_path_factory):
    """All that is trained together, by one set of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks, steps = request.param
    status, _, error = ended(started(ranks, PROGRAM, folder, steps))
    assert status == [0] * ranks, error
    return torch.load(folder / "found.pt", weights_only=True), folder, steps


@pytest.mark.filterwarnings("ignore:BCE got scores")
def test_losses(together):
    (found, _, steps), made = together, ranks_program.losses()
    assert len(made) > 0.6 * len(ranks_program.CASES)
    for name, loss in made.items():
        truth = ranks_program.alone(loss, steps=steps)
        torch.testing.assert_close(found[name][FIRST], truth[FIRST], rtol=1e-10, atol=1e-10, msg=name)
        # Over many steps the slope of a logarithm near 0 makes more of what the order of sums changes.
        near = 1e-6 if name.startswith("bce") else 1e-10
        torch.testing.assert_close(found[name], truth, rtol=near, atol=near, msg=name)
    for name in ("selhn", "infonce"):
        truth = ranks_program.alone(made[name].float(), torch.float32, steps=steps)
        torch.testing.assert_close(found[f"{name} float32"], truth, rtol=1e-4, atol=1e-5, msg=name)
    truth = ranks_program.alone(TripletSelHN(), steps=steps)
    gradients, alone = slice(1, FIRST.stop), found["wrong: each rank alone"]
    assert torch.cosine_similarity(alone[gradients], truth[gradients], dim=0) < 0.99, (
        "another loss is trained"
    )
    assert not torch.allclose(alone, truth, rtol=1e-3)
    truth, shrunk = ranks_program.alone(TripletHN(), steps=steps), found["wrong: gathered without gradient"]
    assert shrunk[gradients].norm() < 0.8 * truth[gradients].norm(), "the gradient is smaller, silently"


@pytest.fixture(scope="module")
def data():
    return ranks_program.world()


# A batch norm follows these: their gradients are 0 but for rounding, of which AdamW makes whole steps.
NO_GRADIENT = {
    "rvse": ("mlp.layers.0.bias", "mlp.bns.0.running_mean"),
    "saf": ("mean.0.bias", "mean.1.running_mean"),
}
NO_GRADIENT["saf"] += ("reasoning.attention.bias", "reasoning.norm.running_mean")
NO_GRADIENT["saf"] += ("head.last.bias",)  # added to positives and negatives alike


@pytest.mark.parametrize("name", ranks_program.RUNS)
def test_runs(together, data, name):
    whole = {"chunk": 0} if name == "chunk" else {}
    weights, _ = ranks_program.trained(data, *ranks_program.RUNS[name], **whole)
    found = together[0][f"run {name}"]
    assert found.keys() == weights.keys()
    compared = {
        part: weight for part, weight in weights.items() if not part.endswith(NO_GRADIENT.get(name, ("?",)))
    }
    assert len(compared) > len(weights) - 8
    for part, weight in compared.items():
        torch.testing.assert_close(
            found[part], weight, rtol=1e-3, atol=2e-5, msg=lambda m, part=part: f"{part}: {m}"
        )


def test_a_run_is_resumed_bit_for_bit(together):
    found, folder, _ = together
    whole = found["not stopped"]
    assert all(torch.equal(found["resumed"][part], weight) for part, weight in whole.items())
    assert len([row for row in RunFolder(folder / "run").log() if "loss" in row]) == 2 * (100 // 25)
    assert RunFolder(folder / "run").finished


def test_what_is_refused_by_name(together):
    words = {"ncr": "NCR", "aoq": "AOQ", "meta": "MetaSPN", "naaf": "naaf", "vsrn": "vsrn"}
    for name, word in words.items():
        assert word in together[0][f"refused {name}"]


def test_torchrun_with_one_process_makes_no_group(monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with joined() as ranks:
        assert ranks is None
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("settings", "word"), [("loss=ncr", "NCR"), ("loss=hn capture=always", "capture=always")]
)
def test_a_loss_and_settings_are_refused_before_data_are_read(monkeypatch, settings, word):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    config = override(get_recipe("rvse_selhn_world"), ["data=nowhere", *settings.split()])
    with pytest.raises(SelhnError, match=word):
        run.run_config(config, quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 1])
def test_a_killed_rank_ends_all_with_one_sentence_and_the_run_is_resumed(tmp_path, ranks):
    def command(out, *more):
        settings = "data.images=100 epochs=4 batch_size=50 model.dim=16 model.word_dim=16 device=cpu checkpoint_every=3"
        return ["-m", "selhn", "train", "rvse_selhn_world", *settings.split(), *more, "--out", tmp_path / out]

    assert ended(started(2, *command("whole")))[0] == [0, 0]
    processes = started(2, *command("killed"))
    while not RunFolder(tmp_path / "killed").started:
        time.sleep(0.01)
    processes[1].kill()
    status, _, error = ended(processes)
    assert status == [2, -9]
    assert error.count("selhn:") == 1
    assert "resume" in error
    assert "Traceback" not in error
    status, _, error = ended(started(ranks, "-m", "selhn", "train", "--resume", tmp_path / "killed"))
    assert status == [0] * ranks, error
    whole, resumed = (load_model(tmp_path / name / "best").state_dict() for name in ("whole", "killed"))
    for part, weight in whole.items():
        if ranks == 2:
            assert torch.equal(resumed[part], weight), part
        elif not part.endswith(NO_GRADIENT["rvse"]):
            torch.testing.assert_close(resumed[part], weight, rtol=1e-2, atol=1e-3, msg=part)


@pytest.mark.slow
def test_what_all_refuse_is_said_once(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "selhn", "train", "rvse_selhn_world", "epochs=0", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.count("selhn: epochs") == 1


def test_the_command_of_the_documentation(monkeypatch, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "train.md").read_text()
    (command,) = re.findall(r"^torchrun --nproc-per-node 2 -m selhn (train .*)$", page, flags=re.MULTILINE)

    def stop(folder, model, data, loss, config, **more):
        assert config.train.epochs == 3
        raise SelhnError("as far as this")

    monkeypatch.setattr(run, "train_in", stop)
    with pytest.raises(SelhnError, match="as far as this"):
        CliRunner().invoke(
            app, [*command.split(), "data.images=20", "--out", str(tmp_path)], catch_exceptions=False
        )
