"""Whatever of a run is emptied or changed, it is continued from what is whole, or refused; never in silence."""

import json
import shutil

import pytest
from safetensors.torch import load_file

from selhn.base.errors import Damaged
from selhn.losses import TripletSelHN
from selhn.training import train
from selhn.training.config import TrainConfig

CONFIG = TrainConfig(epochs=3, batch_size=64, device="cpu")
CHECKPOINT = ["model.safetensors", "training.safetensors", "training.json", "checksums.json"]


@pytest.fixture(scope="module")
def whole(tiny_data, tmp_path_factory):
    """A run of two epochs, and what it ends as after three."""
    place = tmp_path_factory.mktemp("runs")
    go(tiny_data, place / "two", epochs=2)
    shutil.copytree(place / "two", place / "three")
    go(tiny_data, place / "three", resume=True)
    return place


@pytest.fixture
def run(whole, tmp_path):
    shutil.copytree(whole / "two", tmp_path / "run")
    return tmp_path / "run"


def go(data, out, **settings):
    import torch

    from selhn.models import create_model
    from selhn.text import Vocabulary

    torch.manual_seed(0)
    words = Vocabulary.build(data.train.captions)
    model = create_model("vse_fc", tokenizer=words, feature_dim=data.feature_dim, dim=16, word_dim=12)
    return train(model, data, TripletSelHN(), out=out, config=CONFIG, **settings)


def newest(run):
    return max((run / "checkpoints").glob("step_*"))


def state(run):
    tensors = {
        **load_file(newest(run) / "model.safetensors"),
        **load_file(newest(run) / "training.safetensors"),
    }
    files = [(run / name).read_text() for name in ("log.jsonl", "results.json", "best/checksums.json")]
    return {name: tensor.tolist() for name, tensor in tensors.items()}, files


@pytest.mark.parametrize(
    ("file", "damage"), [*((file, "emptied") for file in CHECKPOINT), ("training.safetensors", "flipped")]
)
def test_a_damaged_checkpoint(whole, run, tiny_data, file, damage, capsys):
    path = newest(run) / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 2
    path.write_bytes(content if damage == "flipped" else b"")
    go(tiny_data, run, resume=True)
    assert "Continuing from the checkpoint before" in capsys.readouterr().out
    assert state(run) == state(whole / "three")


def test_the_name_of_the_newest_is_lost(whole, run, tiny_data):
    (run / "checkpoints" / "latest").write_bytes(b"")
    go(tiny_data, run, resume=True, quiet=True)
    assert state(run) == state(whole / "three")


@pytest.mark.parametrize("file", ["model.safetensors", None])
def test_a_damaged_best_model(whole, run, tiny_data, file, capsys):
    if file is None:
        shutil.rmtree(run / "best")
    else:
        (run / "best" / file).write_bytes(b"")
    go(tiny_data, run, resume=True)
    assert "It was written again from the checkpoint" in capsys.readouterr().out
    assert state(run) == state(whole / "three")


def test_a_best_model_that_no_checkpoint_has(run, tiny_data, monkeypatch, capsys):
    (run / "best" / "model.safetensors").write_bytes(b"")
    for path in (run / "checkpoints").glob("step_*"):
        content = json.loads((path / "training.json").read_text())
        content["position"]["best_epoch"] = 7
        content["format"] = 1
        (path / "training.json").write_text(json.dumps(content))
        (path / "checksums.json").unlink()
    with pytest.raises(Damaged, match="no checkpoint has the weights of epoch 8.*remove it to continue"):
        go(tiny_data, run, resume=True)
    shutil.rmtree(run / "best")
    assert go(tiny_data, run, resume=True).best_epoch == 2
    assert "The best of the epochs from now on is kept" in capsys.readouterr().out


def test_a_damaged_log(whole, run, tiny_data, capsys):
    log = (run / "log.jsonl").read_bytes()
    (run / "log.jsonl").write_bytes(log[:-3] + b"9}\n")
    go(tiny_data, run, resume=True)
    assert "log.jsonl is not what it was" in capsys.readouterr().out
    assert state(run) == state(whole / "three")


def test_a_log_that_is_damaged_from_the_start(run, tiny_data, capsys):
    (run / "log.jsonl").write_bytes(b"")
    with pytest.raises(Damaged, match="log.jsonl is not what it was.*remove it to continue with a new log"):
        go(tiny_data, run, resume=True)
    (run / "log.jsonl").unlink()
    go(tiny_data, run, resume=True)
    assert "the log begins again" in capsys.readouterr().out


def test_all_checkpoints_are_damaged(run, tiny_data):
    for path in (run / "checkpoints").glob("step_*"):
        (path / "training.safetensors").write_bytes(b"")
    with pytest.raises(Damaged, match="training.safetensors is not what was written"):
        go(tiny_data, run, resume=True)


def test_what_killed_processes_left_is_removed(whole, run, tiny_data):
    shutil.copytree(newest(run), run / "checkpoints" / "step_00000001_epoch_0000")
    (run / "checkpoints" / ".step_00000002_epoch_0000.partial").mkdir()
    (run / "checkpoints" / ".latest.partial").write_text("step")
    go(tiny_data, run, epochs=2, resume=True)  # it was finished: nothing more is written
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == sorted(
        path.name for path in (whole / "two" / "checkpoints").iterdir()
    )
