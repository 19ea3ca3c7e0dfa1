"""A run that someone sent, with links planted in it, or one on a read-only disk: nothing changes."""

import json
import os
import shutil
import sys
from itertools import cycle
from types import SimpleNamespace

import pytest
from planted import PLANTED, make_outside, plant
from read_only import content_of, read_only

from selhn.base.errors import Damaged, Linked, Locked, NotFound, SelhnError
from selhn.diagnose import diagnose
from selhn.models import load_model
from selhn.report import write_report
from selhn.runs import RunFolder, find_runs
from selhn.serve.watched_runs import WatchedRuns
from selhn.training import get_recipe, measure_runs, override, resume_run, run_config
from selhn.training.trackers import WandB

SMALL = ["data.images=100", "data.width=32", "epochs=1", "batch_size=64", "model.dim=16", "model.word_dim=8"]
NAMES = [
    *("config.yaml", "identity.json", "env.json", "log.jsonl", "results.json", "verdict.json"),
    *("vocabulary.json", "tokenizer.json", "config.json", "checksums.json", "lock"),
    *("best", "best/config.json", "best/model.safetensors", "best/vocabulary.json", "best/notes"),
    *("checkpoints", "checkpoints/latest", "checkpoints/step_00000009_epoch_0009"),
    *(".best.partial", ".best.partial/ready", ".best.partial/ready/config.json", ".best.partial/lock"),
]
DOORS = {
    "open": RunFolder,
    "resume": lambda run: resume_run(run, ["epochs=2"], quiet=True),
    "eval": lambda run: list(measure_runs([run])),
    "report": lambda run: write_report([run], examples=0),
    "diagnose": lambda run: diagnose(run),
    "serve": lambda run: WatchedRuns(run.parent).verdict(run.name),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of one epoch."""
    out = tmp_path_factory.mktemp("runs") / "run"
    run_config(override(get_recipe("rvse_selhn_world"), [*SMALL, "device=cpu"]), out, quiet=True)
    return out


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "runs" / "run")


@pytest.fixture
def outside(tmp_path):
    return make_outside(tmp_path / "outside")


@pytest.mark.parametrize(("name", "kind"), list(zip(NAMES, cycle(PLANTED))))
def test_a_link_is_refused_and_nothing_outside_is_touched(run, outside, kind, name):
    before = content_of(outside)
    plant(run / name, kind, outside)
    with pytest.raises(Linked, match=name.rpartition("/")[2]):
        RunFolder(run)
    assert content_of(outside) == before


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "name", ["config.yaml", "log.jsonl", "best", "best/config.json", ".best.partial/ready"]
)
def test_no_door_leads_through_a_link(run, outside, door, name):
    before = content_of(outside)
    plant(run / name, "link to a folder" if "." not in name[1:] else "link to a file", outside)
    with pytest.raises((Damaged, NotFound)) as told:
        DOORS[door](run)
    assert content_of(outside) == before
    assert "secret" not in str(told.value)
    assert "outside" not in str(told.value)


@pytest.mark.parametrize("name", ["report.html", ".report.html.partial", ".config.yaml.partial"])
@pytest.mark.parametrize("kind", [kind for kind in PLANTED if kind != "pipe"])
def test_what_is_written_there_is_never_written_elsewhere(run, outside, kind, name):
    """Names that nothing reads: a link there is replaced, left alone, or refused as the folder that it leads to."""
    before = content_of(outside)
    plant(run / name, kind, outside)
    if (name, kind) == ("report.html", "link to a folder"):
        with pytest.raises(SelhnError):
            write_report([run], examples=0)
    else:
        assert "<html" in write_report([run], examples=0).read_text()
        assert not (run / "report.html").is_symlink()
    RunFolder(run).describe({"model": "other"}, {})
    RunFolder(run).write_verdict({"kind": "stalled"})
    assert content_of(outside) == before


@pytest.mark.parametrize("place", ["", "new", "ready", "previous"])
def test_loading_removes_and_moves_nothing_of_the_reader(run, outside, place):
    """A run without best/, whose hidden folder beside it leads to folders of the reader."""
    before = content_of(outside)
    shutil.rmtree(run / "best")
    plant(run / ".best.partial" / place, "link to a folder", outside)
    for load in (load_model, lambda run: load_model(run / "best")):
        with pytest.raises((Linked, NotFound)):
            load(run)
    assert content_of(outside) == before


def test_a_hard_link_is_not_written_through(run, outside):
    (run / "log.jsonl").unlink()
    os.link(outside / "secret.txt", run / "log.jsonl")
    with pytest.raises(SelhnError):
        resume_run(run, ["epochs=2"], quiet=True)
    assert (outside / "secret.txt").read_text() == "secret"


def test_a_run_that_the_user_names_by_a_link_is_opened(run, tmp_path):
    (tmp_path / "named").symlink_to(run)
    (run / "notes").symlink_to(tmp_path)  # of the user, and never opened
    assert load_model(tmp_path / "named").name == "rvse"
    assert diagnose(tmp_path / "named").verdict == diagnose(run).verdict


@pytest.mark.parametrize("stages", [(), ("previous",), ("previous", "ready")])
def test_a_run_is_read_on_a_read_only_disk_also_after_an_interrupted_write(run, tmp_path, stages):
    for stage in stages:
        shutil.copytree(run / "best", run / ".best.partial" / stage)
    if stages:
        shutil.rmtree(run / "best")
    before = content_of(run)
    with read_only(run):
        model = load_model(run)
        folder = RunFolder(run)
        folder.verify_best(model)
        folder.restore_best(model)
        assert folder.tokenizer() is not None
        assert dict(measure_runs([run]))["run"].to_dict() == dict(folder.results.test)
        assert "<html" in write_report([run], tmp_path / "report.html", examples=1).read_text()
        command_line_diagnosis(run)
        with pytest.raises(SelhnError, match="--out"):
            write_report([run], examples=0)
    assert content_of(run) == before
    with folder.hold():
        assert (run / "best" / "config.json").exists()
    assert not (run / ".best.partial").exists()


def command_line_diagnosis(run):
    from typer.testing import CliRunner

    from selhn.cli import app

    told = CliRunner().invoke(app, ["diagnose", str(run), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["kind"]


def test_runs_are_not_found_through_links(run, outside):
    shutil.copytree(run, outside / "theirs")
    (run.parent / "linked").symlink_to(outside / "theirs")
    (run.parent / "log").mkdir()
    (run.parent / "log" / "log.jsonl").symlink_to(run / "log.jsonl")
    assert find_runs(run.parent) == [run]


def test_scores_of_several_runs_stay_in_their_folder(run, outside, tmp_path):
    shutil.copytree(run, run.with_name("other"))
    before = content_of(outside)
    plant(tmp_path / "scores" / "other", "link to a folder", outside)
    with pytest.raises(Linked):
        list(measure_runs([run, run.with_name("other")], scores=tmp_path / "scores"))
    assert content_of(outside) == before


@pytest.mark.parametrize("name", ["wandb", ".wandb"])
def test_a_tracker_is_not_led_elsewhere(run, outside, monkeypatch, name):
    started = []
    library = SimpleNamespace(init=lambda **settings: started.append(settings))
    monkeypatch.setitem(sys.modules, "wandb", library)
    WandB.start(RunFolder(run), "run")
    plant(run / name, "link to a folder", outside)
    with pytest.raises(Linked):
        WandB.start(RunFolder(run), "run")
    assert [one["dir"] for one in started] == [str(run)]


def test_a_second_process_is_still_told_who_trains(run):
    with RunFolder(run).hold(), pytest.raises(Locked), RunFolder(run).hold():
        pass
