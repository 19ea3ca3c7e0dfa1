import json
import math

import pytest
import yaml

from selhn.reproduce.paper_runs import PaperRuns

SMALLER = [
    "data.images=100",
    "data.width=32",
    "epochs=1",
    "batch_size=100",
    "model.dim=16",
    "model.word_dim=8",
]


@pytest.fixture
def written_runs(tmp_path):
    """Run folders as a training would leave them, without one: `written_runs(wanted, seeds)`."""

    def write(wanted, seeds=(0,)):
        runs = PaperRuns(tmp_path / "out", "world", SMALLER, seeds, small=True)
        (tmp_path / "out").mkdir()
        for number, one in enumerate(wanted):
            for seed in seeds:
                folder = runs.folder(one, seed)
                folder.mkdir(parents=True)
                config = runs.config(one, seed)
                (folder / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
                (folder / "results.json").write_text(json.dumps(results(20.0 + number + seed)))
                (folder / "log.jsonl").write_text("\n".join(json.dumps(row) for row in log(seed)) + "\n")
        return runs

    return write


def results(level):
    recalls = {"R@1": level, "R@5": level + 20, "R@10": level + 40}
    direction = {**recalls, "median_rank": 3.0, "mean_rank": 5.0, "num_queries": 100}
    return {"dev": {}, "test": {"i2t": direction, "t2i": direction}, "best_epoch": 3, "stalled": None}


def log(seed):
    for epoch in range(4):
        for step in range(epoch * 10 + 1, epoch * 10 + 11):
            numbers = {"loss_per_anchor": 0.2 + 0.01 * math.sin(step + seed), "delta_s": 0.001 * step,
                       "separated": step / 40, "grad_image_fc": 1 / step}  # fmt: skip
            yield {"step": step, "epoch": epoch, **numbers}
        yield {"step": epoch * 10 + 10, "epoch": epoch, "dev": {"rsum": 50.0 * epoch}}
