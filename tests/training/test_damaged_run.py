"""Whatever of a run is emptied or changed, it is continued from what is whole, or refused; never in silence."""

import shutil

import pytest
import torch

from selhn.base.errors import Damaged
from selhn.losses import TripletSelHN
from selhn.training import train
from selhn.training.config import TrainConfig

CONFIG = TrainConfig(epochs=3, batch_size=64, device="cpu")


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
    from selhn.models import create_model
    from selhn.text import Vocabulary

    torch.manual_seed(0)
    words = Vocabulary.build(data.train.captions)
    model = create_model("vse_fc", tokenizer=words, feature_dim=data.feature_dim, dim=16, word_dim=12)
    return train(model, data, TripletSelHN(), out=out, config=CONFIG, **settings)


def newest(run):
    return max((run / "checkpoints").glob("step_*"))


def state(run):
    files = [(run / name).read_text() for name in ("log.jsonl", "results.json", "best/checksums.json")]
    return newest(run).read_bytes(), files


def test_a_damaged_checkpoint(whole, run, tiny_data, capsys):
    content = bytearray(newest(run).read_bytes())
    content[len(content) // 2] ^= 2
    newest(run).write_bytes(content)
    go(tiny_data, run, resume=True)
    assert "Continuing from the checkpoint before" in capsys.readouterr().out
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


def test_a_best_model_that_no_checkpoint_has(run, tiny_data, capsys):
    (run / "best" / "model.safetensors").write_bytes(b"")
    for path in (run / "checkpoints").glob("step_*"):
        content = torch.load(path)
        content["position"]["best_epoch"] = 7
        torch.save(content, path)
    with pytest.raises(Damaged):
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
    with pytest.raises(Damaged):
        go(tiny_data, run, resume=True)
    (run / "log.jsonl").unlink()
    go(tiny_data, run, resume=True)
    assert "the log begins again" in capsys.readouterr().out
