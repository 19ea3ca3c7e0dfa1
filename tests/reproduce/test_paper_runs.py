import json

import failing_runs
import pytest
import torch

from selhn.base.errors import NotFound, SelhnError
from selhn.data import load_data, write_native
from selhn.reproduce import run_processes
from selhn.reproduce.paper_runs import PaperRuns, fitting, is_done
from selhn.reproduce.tables import RUNS, VSE_INFTY, Wanted, recipe
from selhn.runs import environment
from selhn.training import open_run

pytestmark = pytest.mark.usefixtures("small_dev_and_test")
SMALLER = [
    "data.images=100",
    "data.width=32",
    "epochs=1",
    "batch_size=100",
    "model.dim=16",
    "model.word_dim=8",
]
FC = recipe("vse_fc_hn")


def small_runs(folder, *settings, seeds=(0,)):
    return PaperRuns(folder, "world", [*SMALLER, *settings], seeds, small=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs that can be averaged, each with two seeds."""
    runs = small_runs(tmp_path_factory.mktemp("runs"), seeds=(0, 1))
    runs.train([recipe("scan_t2i_avg_hn"), recipe("scan_i2t_avg_hn")])
    return runs


def test_what_is_there_is_not_trained_again(trained, monkeypatch, capsys):
    before = [trained.folder(recipe("scan_t2i_avg_hn"), seed).stat().st_mtime_ns for seed in (0, 1)]
    monkeypatch.setattr("selhn.reproduce.run_processes.run_config", None)
    small_runs(trained.out, seeds=(0, 1)).train([recipe("scan_t2i_avg_hn")])
    assert "2 of 2 runs are there" in capsys.readouterr().out
    assert [trained.folder(recipe("scan_t2i_avg_hn"), seed).stat().st_mtime_ns for seed in (0, 1)] == before


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("loss=tal", "a row is named"),
        ("model=vsepp", "a row is named"),
        ("start=runs/other", "a row is named"),
        ("data=f8k", "--data"),
        ("seed=3", "--seeds"),
        ("train.seed=3", "--seeds"),
    ],
)
def test_what_a_row_is_named_after_cannot_be_changed_for_all(tmp_path, setting, instead):
    with pytest.raises(SelhnError, match=instead):
        small_runs(tmp_path, setting)


def test_another_run_in_its_place_is_refused(trained):
    with pytest.raises(SelhnError, match="lr"):
        small_runs(trained.out, "lr=0.5").train([recipe("scan_t2i_avg_hn")])
    with pytest.raises(SelhnError, match="data.images"):
        small_runs(trained.out, "data.images=120").train([recipe("scan_t2i_avg_hn")])
    assert is_done(trained.folder(recipe("scan_t2i_avg_hn"), 0), trained.config(recipe("scan_t2i_avg_hn"), 0))


def test_a_broken_run_is_taken_up_to_the_same_end(tmp_path):
    whole = small_runs(tmp_path / "whole", "epochs=2")
    whole.train([FC])
    broken = small_runs(tmp_path / "broken", "epochs=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selhn.training.loop.RunFolder.restore_best", lambda self, model: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            broken.train([FC])
    assert broken.done(FC) == []
    assert broken.metrics([FC]) == []
    assert broken.logs(FC) == []
    broken.train([FC])
    assert broken.metrics([FC])[0] == whole.metrics([FC])[0]
    assert broken.logs(FC) == whole.logs(FC)


def test_an_ensemble_and_folds(trained):
    members = [recipe("scan_t2i_avg_hn"), recipe("scan_i2t_avg_hn")]
    single, both = trained.metrics(members[:1]), trained.metrics(members)
    assert len(single) == len(both) == 2
    assert single[0] == type(single[0]).from_dict(
        json.loads((trained.folder(members[0], 0) / "results.json").read_text())["test"]
    )
    folds = trained.metrics(members, folds=5)[0]
    assert folds.t2i.num_queries == both[0].t2i.num_queries
    assert folds.rsum > both[0].rsum, "four images are easier than twenty"
    kept = trained.out / "measured" / "scan_t2i_avg_hn+scan_i2t_avg_hn-seed0-folds5.json"
    kept.write_text(single[0].to_json())
    assert trained.metrics(members, folds=5)[0] == single[0], "measured once"
    (trained.folder(members[0], 0) / "results.json").touch()
    assert trained.metrics(members, folds=5)[0] == folds, "and again when a run is newer"


def test_speed_is_measured_once(trained, monkeypatch):
    members = [recipe("scan_t2i_avg_hn"), recipe("scan_i2t_avg_hn")]
    speed = trained.pairs_a_second(members)
    assert speed > 0
    monkeypatch.setattr("selhn.reproduce.paper_runs._seconds_to_score", lambda model, split: 1e9)
    assert trained.pairs_a_second(members) == speed
    (trained.folder(members[0], 0) / "results.json").touch()
    assert trained.pairs_a_second(members) < 1, "and again when a run is newer"


def test_where_the_runs_were_made(trained, tmp_path):
    assert small_runs(tmp_path).environment()["device"] == environment()["device"]
    made = trained.folder(recipe("scan_t2i_avg_hn"), 0).parent.parent / "a" / "seed0" / "env.json"
    made.parent.mkdir(parents=True)
    made.write_text(json.dumps({"device": "a large one"}))
    assert trained.environment()["device"] == "a large one"


def test_a_run_that_fails_leaves_the_others(tmp_path, capsys):
    pytest.importorskip("tokenizers")
    runs = small_runs(tmp_path, f"model.bert={tmp_path / 'nothing'}")
    runs.train([VSE_INFTY, FC])
    assert "is not the folder of a BERT" in runs.failed[VSE_INFTY]
    assert VSE_INFTY.name in capsys.readouterr().out
    assert runs.done(VSE_INFTY) == []
    assert len(runs.done(FC)) == 1


def test_two_at_a_time(tmp_path):
    runs = small_runs(tmp_path, seeds=(0, 1))
    runs.train([FC], jobs=2)
    assert len(runs.done(FC)) == 2
    assert not runs.failed


def test_a_process_that_fails_takes_no_other_run_with_it(tmp_path, monkeypatch, capsys):
    killed, broken = recipe("vse_fc_selhn"), recipe("vse_mlp_hn")
    monkeypatch.setenv("KILLED", killed.name)
    monkeypatch.setenv("DEVICE_FAILS", broken.name)
    monkeypatch.setattr("selhn.reproduce.run_processes.train_run", failing_runs.train_with_failures)
    runs = small_runs(tmp_path)
    runs.train([FC, killed, broken], jobs=2)  # starts with the last two
    assert runs.failed.keys() == {killed, broken}
    assert "its process was killed" in runs.failed[killed]
    assert runs.failed[broken] == "CUDA error: out of memory"
    assert f"{broken.name} seed 0: CUDA error: out of memory\n" in capsys.readouterr().out
    assert len(runs.done(FC)) == 1


def test_after_an_error_of_the_gpu_other_processes_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("DEVICE_FAILS", FC.name)
    monkeypatch.setattr(failing_runs, "broken", False)
    monkeypatch.setattr("selhn.reproduce.run_processes.run_config", failing_runs.fail)
    runs = small_runs(tmp_path)
    runs.train([FC, recipe("vse_mlp_hn")])
    assert list(runs.failed) == [FC]
    assert len(runs.done(recipe("vse_mlp_hn"))) == 1


@pytest.mark.parametrize("cause", [None, torch.AcceleratorError("CUDA error: out of memory")])
def test_a_process_is_lost_if_the_gpu_fails_in_a_recording(cause, tmp_path, monkeypatch):
    def fail(*given, **how):
        raise SelhnError("the training step could not be recorded") from cause

    monkeypatch.setattr(run_processes, "run_config", fail)
    outcome = run_processes.train_run(small_runs(tmp_path).config(FC, 0), tmp_path / "run", True, "")
    assert outcome == ("the training step could not be recorded", True, cause is not None)


def test_a_folder_of_someones_own_is_trained_as_flickr30k(tmp_path):
    write_native(load_data("world", images=100, width=32, regions=9), tmp_path / "own")
    runs = PaperRuns(tmp_path / "out", str(tmp_path / "own"), ["epochs=1"], small=True)
    config = runs.config(recipe("sgr_selhn"), 0)
    assert config.data == str(tmp_path / "own")
    assert config.model_settings["num_regions"] == 9
    assert "images" not in config.data_settings
    runs.train([FC])
    assert open_run(runs.folder(FC, 0))[1].test.num_images == 20


def test_settings_go_to_the_models_that_have_them(tmp_path):
    assert fitting(["model.word_dim=8", "epochs=1", "model.dim=4"], "rvsepp") == ["epochs=1", "model.dim=4"]
    with pytest.raises(NotFound, match="no model has a setting 'dimm': did you mean 'dim'?"):
        fitting(["model.dimm=8"], "rvse")
    config = small_runs(tmp_path).config(recipe("rvsepp_selhn"), 3)
    assert config.model_settings == {"bert": str(tmp_path / "tiny_bert"), "dim": 16}
    assert config.train.seed == 3
    assert [small_runs(tmp_path).config(run, 3).train.seed for run in RUNS[("VSRN", "")]] == [3, 103]
    assert (
        small_runs(tmp_path, "model.bert=mine").config(recipe("rvsepp_selhn"), 0).model_settings["bert"]
        == "mine"
    )


def test_mistakes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SELHN_DATA", raising=False)
    with pytest.raises(NotFound, match="f30k"):
        PaperRuns(tmp_path, "f30k").train([FC])
    with pytest.raises(SelhnError, match="each once"):
        PaperRuns(tmp_path, seeds=(1, 1))
    with pytest.raises(NotFound, match="recipe"):
        small_runs(tmp_path).train([Wanted("x", "nonsense")])


@pytest.mark.filterwarnings("ignore:BCE got scores")
def test_a_run_that_another_starts_from_comes_first(tmp_path):
    first = recipe("camp_stage1_bce_max")
    (second,) = RUNS["CAMP", ""]
    assert second.start == first
    runs = small_runs(tmp_path)
    runs.train([second, first])
    assert runs.config(second, 0).start == str(runs.folder(first, 0))
    assert runs.done(first)
    assert runs.done(second)
    runs.out.rename(tmp_path.with_name("moved"))
    moved = small_runs(tmp_path.with_name("moved"))
    assert is_done(moved.folder(second, 0), moved.config(second, 0))
