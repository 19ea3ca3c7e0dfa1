import json
import os
import signal

import pytest
import yaml

from selhn.train.folder import RunFolder, environment, interruptible


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(None, resume=False, identity={})
    assert (folder.path, folder.log, folder.checkpoints) == (None, None, None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt, match="nothing was saved"):
        folder.stop(3)


def test_a_folder_says_what_it_is(tmp_path):
    RunFolder(tmp_path / "run", resume=False, identity={"model": "x"})
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()) == {"model": "x"}
    assert json.loads((tmp_path / "run" / "env.json").read_text())["torch"] == environment()["torch"]


def test_the_first_ctrl_c_waits_and_the_second_does_not():
    with interruptible() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
