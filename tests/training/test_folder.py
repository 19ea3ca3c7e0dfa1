import json
import os
import signal

import pytest

from selhn.base.files import writing
from selhn.losses import TripletSelHN
from selhn.training import train
from selhn.training.folder import RunFolder, environment, interruptible


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(None, resume=False, identity={})
    assert (folder.path, folder.log, folder.checkpoints) == (None, None, None)
    assert list(tmp_path.iterdir()) == []
    assert "nothing was saved" in folder.how_to_go_on(3)


def test_a_folder_says_what_it_is(tmp_path):
    folder = RunFolder(tmp_path / "run", resume=False, identity={"model": "x"})
    folder.describe()
    assert json.loads((tmp_path / "run" / "identity.json").read_text()) == {"model": "x"}
    assert json.loads((tmp_path / "run" / "env.json").read_text())["torch"] == environment()["torch"]
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert "resume=True" in folder.how_to_go_on(3)
    named = RunFolder(tmp_path / "named", resume=False, identity={}, config="model: rvse\n")
    named.describe()
    assert (tmp_path / "named" / "config.yaml").read_text() == "model: rvse\n"
    assert "selhn train --resume" in named.how_to_go_on(3)


def test_a_refused_run_leaves_the_old_one_as_it_was(tmp_path):
    RunFolder(tmp_path, resume=False, identity={}, config="model: rvse\n").describe()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").write_text("x\n")
    with pytest.raises(ValueError, match="already holds a run"):
        RunFolder(tmp_path, resume=False, identity={}, config="model: vse_mlp\n")
    RunFolder(tmp_path, resume=True, identity={}, config="model: vse_mlp\n")
    assert (tmp_path / "config.yaml").read_text() == "model: rvse\n"


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_another_process_is_writing_is_refused(tiny_data, tiny_model, tiny_config, tmp_path, resume):
    def start(resume):
        return train(
            tiny_model(), tiny_data, TripletSelHN(), out=tmp_path, config=tiny_config, resume=resume, quiet=True
        )

    if resume:
        start(False)
    with writing(tmp_path):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match="is being written by process"):
            start(resume)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert start(resume).test.rsum > 0, "and afterwards it may begin, or go on"


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match="is a file: choose a folder"):
        RunFolder(tmp_path / "run", resume=False, identity={})


def test_the_first_ctrl_c_waits_and_the_second_does_not():
    with interruptible() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
