"""Runs: their files, a run continued, a report, what `reproduce` keeps."""

import json
import os
import platform
from pathlib import Path
from unittest.mock import patch

from faults.of_models import MODEL_FILES
from faults.reader import Reader, fresh_model, of_model, small_data
from model_cases import WORDS
from run_cases import metrics, rows

from selhn.base.files import writing
from selhn.base.sealed import seal, write_sealed_json, write_sealed_text
from selhn.base.untrusted import read_text
from selhn.eval import Metrics
from selhn.losses import TripletSelHN
from selhn.pictures.how_far import HowFar, left_out
from selhn.pictures.named_folders import name_for, named_for
from selhn.report import write_report
from selhn.report.page import imported_from
from selhn.reproduce.paper_runs import PaperRuns
from selhn.reproduce.tables import Wanted
from selhn.runs import Results, RunFolder
from selhn.serve.access import Token
from selhn.serve.photos import PAGE_FILE, Page, Running
from selhn.serve.watched_runs import WatchedRuns
from selhn.training import RunConfig, override, train


def make_run(folder):
    """One epoch of two is done, as after Ctrl-C between epochs."""
    train(fresh_model(), small_data(), TripletSelHN(), out=folder / "run", epochs=1, **RUN_SETTINGS)
    train(
        fresh_model(), small_data(), TripletSelHN(), out=folder / "run", epochs=2, resume=True, **RUN_SETTINGS
    )


RUN_SETTINGS = {"batch_size": 8, "device": "cpu", "quiet": True, "ema": 0.9}


def read_run(folder):
    run = RunFolder(folder / "run")
    config = RunConfig.of_run(folder / "run")
    tokenizer = run.tokenizer()
    said = [config, run.identity, run.environment, run.results, run.verdict, run.log(), run.log_since(0)]
    return [*said, tokenizer and tokenizer.encode(["word1 word2"]), of_model(run.best_model())]


def read_watched(folder):
    watched = WatchedRuns(folder)
    found = watched.all()
    return [
        (run.name, run.finished, run.test_rsum, watched.read(run.name), watched.verdict(run.name))
        for run in found
    ]


def make_watched(folder):
    """A run with all its small files, longer than training makes it in a test."""
    (folder / "run").mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows())
    (folder / "run" / "log.jsonl").write_text(lines)
    results = {"dev": metrics(10.0), "test": metrics(11.0), "best_epoch": 3, "stalled": None}
    config = RunConfig("rvse", "selhn", "world", {"dim": 16}, {"epsilon": 0.02}, {"images": 100})
    RunFolder(folder / "run").describe(config.to_dict(), {"data": "world", "model": "rvse"}, WORDS)
    RunFolder(folder / "run").write_results(Results(**results))
    RunFolder(folder / "run").write_verdict({"kind": "healthy", "why": "it learns"})


def read_report(folder):
    written = write_report([folder / "run"], folder / "page.html")
    return Path(written or folder / "page.html").read_text()


def read_resumed(folder):
    """The run continued by an epoch: weights, optimizer, random state and position all count."""
    model = fresh_model()
    train(model, small_data(), TripletSelHN(), out=folder / "run", epochs=3, resume=True, **RUN_SETTINGS)
    results = RunFolder(folder / "run").results
    return model.state_dict(), results, RunFolder(folder / "run").log()[-3:]


def read_settings(folder):
    lines = (folder / "settings.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    return override(RunConfig(), [line for line in lines if line])


def read_measured(folder):
    """What `reproduce` keeps of finished runs; it is newer than they are."""
    run = folder / "runs" / "a" / "seed0"
    run.mkdir(parents=True, exist_ok=True)
    (run / "results.json").touch()
    os.utime(run / "results.json", (0, 0))
    return PaperRuns(folder).pairs_a_second([Wanted("a", "rvse_selhn")])


def read_ensemble(folder):
    """The same for the averaged scores of two runs."""
    for name in ("a", "b"):
        run = folder / "runs" / name / "seed0"
        run.mkdir(parents=True, exist_ok=True)
        results = {"dev": metrics(10.0), "test": metrics(11.0), "best_epoch": 3, "stalled": None}
        (run / "results.json").write_text(json.dumps(results))
        os.utime(run / "results.json", (0, 0))
    return PaperRuns(folder).metrics([Wanted("a", "rvse_selhn"), Wanted("b", "rvse_selhn")])


def make_measured(folder):
    (folder / "measured").mkdir()
    both = metrics(12.0)
    (folder / "measured" / "a+b-seed0-folds1.json").write_text(json.dumps(both))
    (folder / "measured" / "a-seed0-speed.json").write_text(
        json.dumps({"pairs_a_second": 12.5, "torch": "2.10"})
    )


def make_imported(folder):
    (folder / "pictures.json").write_text(json.dumps({"folder": str(folder), "used": 3, "refused": []}))


def make_told(folder):
    told = {
        "done": 1,
        "total": 5,
        "left_out": 1,
        "seconds_left": 3.5,
        "process": os.getpid(),
        "host": platform.node(),
    }
    (folder / "progress.json").write_text(json.dumps(told))
    (folder / "pictures.json").write_text(json.dumps({"left out": [["a.jpg", "is empty"]]}))


def make_page(folder):
    page = Page(folder / "index")
    page.folder.mkdir()
    page.write(Running("http://127.0.0.1:8000", (str(folder),), True, Token("a long secret"), "file:///a"))


def make_named(folder):
    with patch.dict(os.environ, {"XDG_STATE_HOME": str(folder)}):
        name_for("/an.index", "born", [Path("/Pictures"), Path("/Other")])


def read_named(folder):
    with patch.dict(os.environ, {"XDG_STATE_HOME": str(folder)}):
        return [path.resolve() for path in named_for("/an.index", "born")]


def read_lock(folder):
    """Who holds a folder: whatever the file says, the second is refused."""
    content = (folder / "lock").read_bytes()
    with writing(folder):
        (folder / "lock").write_bytes(content)
        with writing(folder):
            raise AssertionError("two writers")


def is_sealed(path):
    """Small files of a run have their checksum inside; without it they count as written before, or by hand."""
    if path.parent.name == "best":
        return path.name in MODEL_FILES
    content = path.read_bytes() if path.is_file() else b""
    return path.name in SMALL and (b"sha256" in content.partition(b"\n")[0] or b'"format"' in content)


def seal_run(folder):
    run = folder / "run"
    for name in SMALL[1:]:
        content = json.loads((run / name).read_text())
        write_sealed_json(
            run / name, {key: value for key, value in content.items() if key not in ("format", "sha256")}
        )
    write_sealed_text(run / SMALL[0], (run / SMALL[0]).read_text().partition("\n")[2])
    if (run / "best").is_dir():
        seal(run / "best", MODEL_FILES)


SMALL = ("config.yaml", "identity.json", "env.json", "results.json", "verdict.json")
SETTINGS = [
    "epochs=3",
    "lr=5e-4",
    "decay_at=[1, 2]",
    "model.dim=16",
    "loss.epsilon=0.02",
    "data.images=100",
    "capture=never",
]
READERS = {
    "run": Reader(make_run, read_run, is_sealed, seal_run, share=0.5),
    # What is damaged is shown as such beside the other runs, not refused.
    "run, watched": Reader(make_watched, read_watched, seal=seal_run),
    "run, report": Reader(make_watched, read_report, is_sealed, seal_run, share=0.3),
    # Half of the changes of a checkpoint make the checksums of its archive right again.
    "run, continued": Reader(make_run, read_resumed, lambda path: path.parent.name == "best", share=0.3),
    "settings": Reader(
        lambda folder: (folder / "settings.txt").write_text("\n".join(SETTINGS)), read_settings
    ),
    "measured, speed": Reader(make_measured, read_measured),
    "measured, ensemble": Reader(make_measured, read_ensemble),
    "metrics": Reader(
        lambda folder: (folder / "metrics.json").write_text(json.dumps(metrics(12.0))),
        lambda folder: Metrics.from_json(read_text(folder / "metrics.json")),
    ),
    "pictures.json": Reader(make_imported, lambda folder: imported_from(str(folder))),
    "progress.json": Reader(make_told, lambda folder: (HowFar.read(folder), left_out(folder))),
    "page.json": Reader(make_page, lambda folder: Running.read(Page(folder / "index").folder / PAGE_FILE)),
    "folders.json": Reader(make_named, read_named),
    "lock": Reader(lambda folder: (folder / "lock").write_text('{"process": 1, "host": "a"}'), read_lock),
}
