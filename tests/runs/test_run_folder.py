import json
from pathlib import Path

import pytest
import torch
from model_cases import make_model
from safetensors import SafetensorError

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.runs import Results, RunFolder, environment, find_runs, load_weights, read_log, save_weights

BEFORE = Path(__file__).parents[1] / "fixtures" / "version_0_2_0"


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(None)
    folder.check(resume=False)
    with folder.hold():
        folder.describe({"model": "rvse"}, {})
        folder.write_results(Results({}, {}, 0, None))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SelhnError, match="resume"):
        folder.check(resume=True)
    with pytest.raises(SelhnError, match="no folder"):
        folder.log_path  # noqa: B018


def test_what_is_written_is_read_back(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert not folder.started
    with folder.hold():
        folder.describe({"model": "rvse", "train": {"lr": 0.1}}, {"model": "x"})
    assert folder.config == {"model": "rvse", "train": {"lr": 0.1}}
    assert folder.identity == {"model": "x"}
    assert folder.environment["torch"] == environment()["torch"]
    assert folder.results is None
    assert not folder.finished
    results = Results({"rsum": 1.0}, {"rsum": 2.0}, 3, "stuck")
    folder.write_results(results)
    folder.write_verdict({"kind": "stalled"})
    assert folder.results == results
    assert folder.finished
    assert folder.verdict == {"kind": "stalled"}
    folder.describe({}, {})
    assert (folder.results, folder.verdict) == (None, None), "neither belongs to a run that continues"


def test_a_run_of_version_0_2_0():
    folder = RunFolder(BEFORE / "run")
    assert folder.finished
    assert folder.started
    assert folder.results.best_epoch == 0
    assert folder.results.test["rsum"] > 0
    assert folder.log()[0]["step"] == 1
    assert folder.config["model"] == "rvse"
    assert folder.best_model().tokenize(["a red ball"])[0].shape[0] == 1
    assert folder.tokenizer().words == folder.best_model().tokenizer.words
    assert folder.verdict["kind"]
    with pytest.raises(SelhnError):
        folder.check(resume=True)


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").checkpoints.write("step_00000001_epoch_0000", {})
    with pytest.raises(SelhnError, match="already"):
        RunFolder(tmp_path / "run").check(resume=False)
    RunFolder(tmp_path / "run").check(resume=True)
    with pytest.raises(SelhnError, match="no checkpoint"):
        RunFolder(tmp_path / "empty").check(resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(SelhnError, match="is a file"):
        RunFolder(tmp_path / "file").check(resume=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]


@pytest.mark.parametrize(
    ("file", "content", "read"),
    [
        ("config.yaml", "train: [", lambda run: run.config),
        ("config.yaml", "- a", lambda run: run.config),
        ("results.json", "{", lambda run: run.results),
        ("results.json", '{"dev": 1}', lambda run: run.results),
        ("env.json", "[]", lambda run: run.environment),
        ("log.jsonl", '{"step": 1}\nnonsense\n{"step": 2}\n', lambda run: run.log()),
    ],
)
def test_damaged_files(tmp_path, file, content, read):
    (tmp_path / file).write_text(content)
    with pytest.raises(Damaged, match=file):
        read(RunFolder(tmp_path))


def test_what_is_no_run(tmp_path):
    assert RunFolder(tmp_path).tokenizer() is None
    with pytest.raises(NotFound):
        RunFolder(tmp_path).log()
    with pytest.raises(NotFound, match="config.json"):
        RunFolder(tmp_path).best_model()
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(NotFound, match="epoch"):
        RunFolder(tmp_path).best_model()


def test_a_line_cut_off_at_the_end_is_left_out(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_log(tmp_path / "log.jsonl") == [{"step": 1}]


def test_a_log_is_read_as_it_grows(tmp_path):
    folder = RunFolder(tmp_path)
    folder.log_path.write_text('{"step": 1}\n[]\n{"step": 2')
    first = folder.log_since()
    assert first == ([{"step": 1}], 15, False, False)
    with folder.log_path.open("a") as file:
        file.write("}\n")
    assert folder.log_since(first.after).rows == [{"step": 2}]
    folder.log_path.write_text('{"step": 7}\n')
    assert folder.log_since(first.after) == ([{"step": 7}], 12, False, True)
    folder.log_path.write_text("x" * 50 + '\n{"step": 1}\n')
    after, rows, more = 0, [], True
    while more:
        part = folder.log_since(after, most_bytes=20)
        after, more = part.after, part.more
        rows += part.rows
    assert rows == [{"step": 1}], "a line that does not fit is skipped"


def test_runs_below_a_folder(tmp_path):
    for name in ("b/seed0", "a", ".hidden", "1/2/3/4/5"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "log.jsonl").write_text("")
    (tmp_path / "log.jsonl").write_text("")
    (tmp_path / "runs" / "linked").mkdir()
    (tmp_path / "runs" / "linked" / "log.jsonl").symlink_to(tmp_path / "log.jsonl")
    assert find_runs(tmp_path / "runs") == [tmp_path / "runs" / "a", tmp_path / "runs" / "b" / "seed0"]
    assert find_runs(tmp_path / "runs", most=1) == [tmp_path / "runs" / "a"]


def test_weights_of_any_module(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model.append(model[0])  # two names, one tensor
    save_weights(model, tmp_path / "model.safetensors")
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    other.append(other[0])
    load_weights(other, tmp_path / "model.safetensors")
    assert torch.equal(other[2].weight, model[0].weight)
    with pytest.raises(SelhnError):
        load_weights(torch.nn.Linear(2, 2), tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(Damaged):
        load_weights(other, tmp_path / "model.safetensors")


def test_results_are_plain_json(tmp_path):
    RunFolder(tmp_path).write_results(Results({"rsum": 1.0}, {"rsum": 2.0}, 3, None))
    content = json.loads((tmp_path / "results.json").read_text())
    assert content.pop("format") == 2
    assert len(content.pop("sha256")) == 64
    assert content == {"dev": {"rsum": 1.0}, "test": {"rsum": 2.0}, "best_epoch": 3, "stalled": None}
    (tmp_path / "results.json").write_text((tmp_path / "results.json").read_text().replace("2.0", "3.0"))
    with pytest.raises(Damaged):
        RunFolder(tmp_path).results  # noqa: B018


@pytest.mark.parametrize("epoch", ["Infinity", "NaN", "null", "[]"])
def test_results_of_no_epoch_are_damaged(tmp_path, epoch):
    (tmp_path / "results.json").write_text(f'{{"dev": {{}}, "test": {{}}, "best_epoch": {epoch}}}')
    with pytest.raises(Damaged):
        RunFolder(tmp_path).results  # noqa: B018


def test_settings_may_be_changed_on_purpose(tmp_path):
    RunFolder(tmp_path).describe({"model": "rvse", "train": {"lr": 0.1}}, {})
    text = (tmp_path / "config.yaml").read_text().replace("0.1", "0.2")
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(Damaged):
        RunFolder(tmp_path).config  # noqa: B018
    (tmp_path / "config.yaml").write_text(text.partition("\n")[2])
    assert RunFolder(tmp_path).config == {"model": "rvse", "train": {"lr": 0.2}}


def test_a_full_disk_names_the_best_model_also_of_a_model_without_a_name(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    model = make_model("rvse")
    model.name = None
    folder = RunFolder(tmp_path)
    folder.keep_best(model)
    before = (tmp_path / "best" / "model.safetensors").read_bytes()
    monkeypatch.setattr("selhn.runs.run_folder.save_weights", full)
    with pytest.raises(OSError, match=r"best could not be written .*No space"):
        folder.keep_best(model)
    assert (tmp_path / "best" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
