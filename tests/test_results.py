"""Pages that state results say what the recorded runs say."""

import csv
import json
import re
from pathlib import Path

from selhn.ops.differences import SHARED_BYTES
from selhn.training import get_recipe, override

DOCS = Path(__file__).parents[1] / "docs"
HARDLY_ABOVE_CHANCE = 12
"""Dev RSUM; that of chance is 3.2."""
WHO_STALLS = {
    "T-HN with RVSE (": ("hn", ("rvse",)),
    "T-HN with RVSE++": ("hn", ("rvsepp",)),
    "T-HN with SCAN": ("hn", ("scan_t2i_avg", "bfan_equal", "saf", "sgr")),
    "SCT": ("sct ssp aoq ncr uto warmup", None),
    "SelHN": ("selhn", None),
    "TAL": ("tal", None),
    "InfoNCE": ("infonce siglip siglip_multi multi_positive shn triplet distance", None),
}
"""Beginnings of the rows of "Who stalls", with their losses and models."""


def unwrapped(page):
    return " ".join((DOCS / page).read_text().split())


def cells(section):
    """The rows of its first table, without the heading."""
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def recorded_runs():
    """The runs of `benchmarks/recipes.txt`, each with the names of its model and loss."""
    for line in (DOCS / "results" / "recipes.jsonl").read_text().splitlines():
        run = json.loads(line)
        named = [word for word in run["settings"].split() if word.startswith(("loss=", "model="))]
        config = override(get_recipe(f"{run['recipe']}_{run['dataset']}"), named)
        yield {**run, "model": config.model, "loss": config.loss}


def column(path, key, value):
    """One column of the runs with seed 0, by name."""
    with path.open(newline="") as file:
        return {row[key]: float(row[value]) for row in csv.DictReader(file) if row["seed"] == "0"}


def test_who_stalls():
    section = (DOCS / "results.md").read_text().split("**Who stalls**")[1].split("Of these, 43")[0]
    runs, counted, rows = list(recorded_runs()), 0, cells(section)
    assert len(rows) == len(WHO_STALLS)
    for (number, stalled, chance, text), (start, (losses, models)) in zip(
        rows, WHO_STALLS.items(), strict=True
    ):
        assert text.startswith(start)
        own = [
            run
            for run in runs
            if run["loss"] in losses.split() and (models is None or run["model"] in models)
        ]
        silent = [run for run in own if not run["stalled"] and run["dev_rsum"] < HARDLY_ABOVE_CHANCE]
        expected = len(own), sum(run["stalled"] for run in own), len(silent)
        assert (int(number), int(stalled), int(chance)) == expected
        for run in silent:
            assert f"{run['dev_rsum']:.1f}" in text
        counted += len(own)
    assert counted == len(runs)
    assert f"all {len(runs)} runs" in section


def test_the_table_of_epsilon():
    section = (DOCS / "results.md").read_text().split("\n## Epsilon\n")[1].split("\n## ")[0]
    rvse, rvsepp = cells(section)
    ours = column(DOCS / "reproduce" / "f8k" / "runs.csv", "run", "rsum")
    names = ["rvse_hn", "rvse_selhn_1e-4", "rvse_selhn_1e-3", "rvse_selhn", "rvse_selhn_1e-1"]
    assert [float(cell) for cell in rvse[1:]] == [round(ours[name], 1) for name in names]
    compared = column(DOCS / "results" / "compare_f8k.csv", "name", "rsum")
    values = ["/epsilon=0", "/epsilon=0.0001", "/epsilon=0.001", "", "/epsilon=0.1"]
    assert [float(cell) for cell in rvsepp[1:]] == [
        round(compared[f"rvsepp_selhn{own}"], 1) for own in values
    ]


def test_pages_agree_on_epsilon():
    """No page calls SelHN insensitive to epsilon without the numbers of the page that measured that it is not."""
    assert re.search(
        r"RSUM on dev of 265\. With epsilon 0\.03 it reaches 466, .* 0\.003 only 99", unwrapped("losses.md")
    )
    for page in ("theory.md", "results.md"):
        assert "99 with 0.003, 265 with 0.01 and 466 with 0.03" in unwrapped(page)


def test_pages_name_the_gpus_that_the_kernels_of_sgr_need():
    for page in ("speed.md", "models.md"):
        assert f"{SHARED_BYTES // 2**10} KiB of shared memory" in unwrapped(page)


def test_the_numbers_on_recipes():
    numbers = re.findall(r"\d{3}\.\d(?: ± \d\.\d)?", (DOCS / "recipe.md").read_text())
    assert len(numbers) == 9
    for number in numbers:
        assert number in (DOCS / "results.md").read_text(), number
