import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.base.sealed import read_sealed_json, read_sealed_text, write_sealed_json
from selhn.data import load_data, write_native
from selhn.eval import evaluate, recall, score_split
from selhn.eval.stored import StoredScores
from selhn.losses import TripletHN
from selhn.models import load_model
from selhn.training import train
from selhn.training.config import RunConfig, override
from selhn.training.run import measure_runs, run_config, run_names

TINY = ["data.images=100", "epochs=1", "batch_size=64", "device=cpu"]
TINY += ["model.dim=16", "model.word_dim=8", "model.sim_dim=8", "model.num_regions=12"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    for name in ("sgr", "saf"):
        run_config(override(RunConfig(model=name), TINY), place / name / "seed0", quiet=True)
    return place


def test_each_run_and_the_average_of_their_scores(runs, tiny_data):
    folders = [runs / "sgr" / "seed0", runs / "saf" / "seed0"]
    measured = dict(measure_runs(folders))
    assert list(measured) == ["sgr/seed0", "saf/seed0", "ensemble"]
    models = [load_model(folder / "best") for folder in folders]
    for model, name in zip(models, measured):
        assert measured[name] == evaluate(model, tiny_data.test)
    sigmoids = [score_split(model, tiny_data.test) for model in models]
    assert all(0 < float(scores.min()) < float(scores.max()) < 1 for scores in sigmoids)
    assert measured["ensemble"] == recall((sigmoids[0] + sigmoids[1]) / 2, tiny_data.test.image_of_text)
    (only,) = measure_runs(folders[:1], split="dev", folds=2)
    assert only == ("seed0", evaluate(models[0], tiny_data.dev, folds=2))


def test_scores_are_kept_and_taken_up_again(runs, tiny_data, tmp_path, monkeypatch):
    folders = [runs / "sgr" / "seed0", runs / "saf" / "seed0"]
    write = StoredScores.write

    def stop(self, texts, columns):
        write(self, texts, columns)
        if self.folder.parts[-2] == "saf":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(StoredScores, "write", stop)
    with pytest.raises(KeyboardInterrupt, match="kept in"):
        list(measure_runs(folders, scores=tmp_path))
    monkeypatch.undo()
    assert dict(measure_runs(folders, scores=tmp_path)) == dict(measure_runs(folders))
    kept = np.load(tmp_path / "saf" / "seed0" / "scores.npy")
    model = load_model(folders[1] / "best")
    torch.testing.assert_close(torch.from_numpy(kept), score_split(model, tiny_data.test, for_ranking=True))
    with pytest.raises(SelhnError):
        list(measure_runs(folders, split="dev", scores=tmp_path))
    list(measure_runs(folders[:1], scores=tmp_path / "one"))
    assert (tmp_path / "one" / "scores.npy").exists(), "one run needs no folder of its own"


def test_runs_that_do_not_go_together(runs, tmp_path):
    saf, larger = runs / "saf" / "seed0", tmp_path / "larger"
    shutil.copytree(saf, larger)
    identity = read_sealed_json(saf / "identity.json", "")
    write_sealed_json(
        larger / "identity.json", {**identity, "data": identity["data"].replace(" 100 ", " 101 ")}
    )
    with pytest.raises(SelhnError, match="other data"):
        list(measure_runs([saf, larger]))
    with pytest.raises(SelhnError, match="101 images"):
        list(measure_runs([saf, larger], data="world"))
    with pytest.raises(SelhnError, match="twice"):
        list(measure_runs([saf, saf]))
    with pytest.raises(SelhnError, match="folds"):
        list(measure_runs([saf], folds=7))
    other = tmp_path / "noisy"
    shutil.copytree(saf, other)
    config = read_sealed_text(other / "config.yaml", "").replace("images: 100", "images: 100\n  noise: 2.0")
    (other / "config.yaml").write_text(config)
    with pytest.raises(SelhnError, match="noise=2.0"):
        list(measure_runs([saf, other]))


def test_saved_models_say_nothing_of_their_data(runs, tmp_path):
    load_model(runs / "saf" / "seed0" / "best").save(tmp_path / "model")
    with pytest.raises(SelhnError):
        list(measure_runs([tmp_path / "model"]))


def test_names(tmp_path):
    folders = [tmp_path / "a" / "seed0", tmp_path / "b" / "seed0", tmp_path / "c"]
    assert run_names(folders) == ["a/seed0", "b/seed0", "c"]
    assert run_names(folders[:1]) == ["seed0"]


def test_the_folds_of_the_data_are_those_of_the_field(tmp_path, tiny_data, tiny_model, tiny_config, capsys):
    coco = replace(tiny_data, test=replace(tiny_data.test, folds=5))
    data = load_data(write_native(coco, tmp_path / "coco"))
    model = tiny_model("vse_fc")
    run = train(model, data, TripletHN(), out=tmp_path / "run", config=tiny_config, epochs=1)
    assert "test: the mean over 5 folds of 4 images" in capsys.readouterr().out
    assert run.test == evaluate(model, data.test, folds=5) != evaluate(model, data.test, folds=1)
    ((_, measured),) = measure_runs([tmp_path / "run"], quiet=False)
    assert measured == run.test
    assert "mean over 5 folds" in capsys.readouterr().out
    ((_, at_once),) = measure_runs([tmp_path / "run"], folds=1, quiet=False)
    assert at_once == evaluate(model, data.test, folds=1)
    assert "folds" not in capsys.readouterr().out
