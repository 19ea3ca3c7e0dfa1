import csv
import re

import pytest

from selhn.reproduce.comparison import needed_runs
from selhn.reproduce.tables import CAMP, DATA_TITLES, PAPER, RUNS, TABLES, paper_rows
from selhn.training import RECIPES, get_recipe, override
from selhn.training.recipes import SYSTEMS

ROWS = paper_rows()
SHAPE = {"table1": 9, "table2": 6, "table3": 10, "table4": 8, "table5": 12, "table6": 12, "table7": 18, "table8": 4,
         "table9": 4, "table10": 5, "table11": 9}  # fmt: skip


def test_every_table_has_its_rows():
    assert {name: len(paper_rows(name)) for name in TABLES} == SHAPE
    assert {row.data for row in ROWS} == set(DATA_TITLES)
    assert {row.kind for row in ROWS} == {"single", "ensemble", ""}
    with (PAPER / "tables.csv").open(newline="") as file:
        assert all(None not in row and None not in row.values() for row in csv.DictReader(file)), (
            "no cell too many"
        )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.table}-{row.method}-{row.loss}-{row.data}")
def test_recalls_add_up_or_the_row_says_so(row):
    assert all(value is None or 20 < value < 100 for value in row.recalls)
    if None in row.recalls:
        assert row.rsum is None
        assert "not all recalls are reported" in row.note
        return
    total = round(sum(row.recalls), 1)
    assert abs(total - row.rsum) <= 0.101, "more than rounding"
    said = re.search(r"the paper's recalls add up to ([\d.]+)", row.note)
    assert (float(said.group(1)) if said else row.rsum) == total
    for first in (0, 3):
        assert list(row.recalls[first : first + 3]) == sorted(row.recalls[first : first + 3]), (
            "recall grows with k"
        )


def test_a_row_that_stands_in_two_tables_is_the_same():
    seen = {}
    for row in ROWS:
        key = (row.method, row.loss, row.data)
        if row.table != "table10":
            assert seen.setdefault(key, (row.recalls, row.rsum)) == (row.recalls, row.rsum), key


def test_the_mislabelled_table_is_marked():
    flickr = [row for row in paper_rows("table3") if row.data == "f30k"]
    for row, there in zip(paper_rows("table10"), flickr, strict=True):
        assert row.recalls == there.recalls, "it repeats the numbers of Flickr30K"
        assert "no target" in row.note


def test_the_recipes_quote_the_same_numbers():
    as_they_are = {
        row: RUNS[row.method, row.loss][0]
        for row in ROWS
        if len(runs := RUNS.get((row.method, row.loss), ())) == 1
        and (runs == (CAMP,) or not runs[0].settings)
    }
    flickr = {run.recipe: row.rsum for row, run in as_they_are.items() if row.data == "f30k" and row.rsum}
    for name, (model, loss) in RECIPES.items():
        said = re.match(r"[\d.]+", SYSTEMS[model].rsum[loss])
        assert (float(said.group()) if said else None) == flickr.get(name), name
    assert len(flickr) == 9 + 1 + 10 + 4


def test_every_run_has_a_recipe_and_a_folder_of_its_own():
    every = {run for members in RUNS.values() for run in members}
    assert len({run.name for run in every}) == len(every)
    for run in every:
        override(get_recipe(f"{run.recipe}_world"), run.settings)


def test_every_run_is_behind_a_row():
    assert set(RUNS) <= {(row.method, row.loss) for row in ROWS}
    missing = {row.method for row in ROWS if (row.method, row.loss) not in RUNS}
    assert missing == set()


def test_runs_are_shared_and_the_papers_data_fills_its_own_rows():
    assert len(needed_runs([*TABLES], "world")) == 9 + 12 + 2 + 6 + 1 + 2 + 2 + 4 + 1 + 3
    assert needed_runs(["table6"], "f30k") == []
    assert len(needed_runs(["table6"], "coco")) == 8 + 2 + 4 + 1 + 3
    coco, flickr = (next(row for row in ROWS if row.data == data) for data in ("coco_5k", "f30k"))
    assert [coco.applies_to(data) for data in ("coco", "f30k", "world", "some/folder")] == [
        True,
        False,
        True,
        True,
    ]
    assert [flickr.applies_to(data) for data in ("coco", "f30k", "f8k")] == [False, True, True]
