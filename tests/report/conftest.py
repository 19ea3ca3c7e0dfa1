import json

import pytest
import yaml
from run_cases import few_held_out, metrics, rows

from selhn.report.records import read_runs
from selhn.training import get_recipe, override, run_config

TINY = ["data.images=100", "data.width=32", "epochs=2", "batch_size=100", "model.dim=16", "model.word_dim=8",
        "device=cpu"]  # fmt: skip


@pytest.fixture
def write_run(tmp_path):
    """Folders as a training would leave them, without one: `write_run("hn", "loss=hn", level=20)`."""

    def write(name, *settings, log=None, level=10.0, finished=True, configured=True):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        if configured:
            config = override(get_recipe("rvse_selhn_world"), [*TINY, *settings])
            (folder / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
        log = list(rows(level=level)) if log is None else log
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
        (folder / "env.json").write_text(
            json.dumps({"torch": "2.10", "device": "cpu", "command": ["selhn", "train"]})
        )
        if finished:
            results = {"dev": metrics(level), "test": metrics(level), "best_epoch": 3, "stalled": None}
            (folder / "results.json").write_text(json.dumps(results))
        return folder

    return write


@pytest.fixture
def record(write_run):
    """One such run, read."""

    def make(name="run", *settings, **how):
        return read_runs([write_run(name, *settings, **how)])[0]

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Two small runs that were really trained, on the same world."""
    place = tmp_path_factory.mktemp("trained")
    with few_held_out():
        for loss in ("hn", "selhn"):
            run_config(override(get_recipe(f"rvse_{loss}_world"), TINY), place / loss, quiet=True)
    return place
