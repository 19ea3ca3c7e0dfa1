import csv
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from planted import make_outside, plant
from read_only import content_of

from selhn.base.errors import Linked, NotFound
from selhn.reproduce import TABLES, reproduce
from selhn.reproduce.comparison import NAMES, Line, describe, expand, line, needed_runs
from selhn.reproduce.paper_figures import FIGURES
from selhn.reproduce.paper_runs import PaperRuns
from selhn.reproduce.tables import RUNS, paper_rows, recipe

pytestmark = pytest.mark.usefixtures("small_dev_and_test")
SMALLER = [
    "data.images=100",
    "data.width=32",
    "epochs=1",
    "batch_size=100",
    "model.dim=16",
    "model.word_dim=8",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Table 1 and a figure, as the command makes them."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("made")
    return folder, reproduce(["fig3", "table1"], "world", out=folder, small=True, settings=SMALLER, jobs=1)


def test_a_table_and_a_figure(made):
    folder, written = made
    assert [path.name for path in written] == ["table1.md", "fig3.png"]
    assert (folder / "fig3.png").stat().st_size > 20_000
    assert len(list((folder / "runs").iterdir())) == 9, "the figure takes its runs from the table"
    text = (folder / "table1.md").read_text()
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert len(rows) == 2 + 9
    assert len({len(row) for row in rows}) == 1
    assert "| 498.6 " in rows[-1]
    assert "--tiny" in text
    assert "neither the numbers nor their order" in text
    assert "compare the order" not in text
    page = (folder / "README.md").read_text()
    assert text.strip() in page
    assert "(fig3.png)" in page


def test_the_csv_has_ours_and_the_papers(made):
    with (made[0] / "table1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    for row in rows:
        ours = [float(row[f"ours_{way}_r{k}"]) for way in ("i2t", "t2i") for k in (1, 5, 10)]
        assert float(row["ours_rsum"]) == pytest.approx(sum(ours), abs=0.05)
        assert row["difference"] == "", "the paper's numbers are of other data"
        assert row["seeds"] == "1"
    assert rows[-1]["paper_rsum"] == "498.60"


def test_every_run_is_a_row_of_data(made):
    with (made[0] / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert {row["run"] for row in rows} == {path.name for path in (made[0] / "runs").iterdir()}
    assert {(row["model"], row["loss"]) for row in rows} == {
        (model, loss) for model in ("vse_fc", "vse_mlp", "rvse") for loss in ("triplet", "hn", "selhn")
    }
    for row in rows:
        recalls = [float(row[f"{way}_r{k}"]) for way in ("i2t", "t2i") for k in (1, 5, 10)]
        assert float(row["rsum"]) == pytest.approx(sum(recalls), abs=0.05)
        assert int(row["best_epoch"]) >= 1


def test_a_second_call_trains_nothing_and_adds_to_the_page(made, monkeypatch):
    folder, _ = made
    monkeypatch.setattr("selhn.reproduce.run_processes.run_config", None)
    reproduce(["fig5", "fig9"], "world", out=folder, small=True, settings=SMALLER, jobs=1)
    page = (folder / "README.md").read_text()
    assert (
        page.index("## Table 1")
        < page.index("## Figure 3")
        < page.index("## Figure 5")
        < page.index("## Figure 9")
    )


def test_rows_say_why_they_are_empty(written_runs):
    runs = written_runs([recipe("rvse_selhn")], seeds=(0, 1))
    rvse = next(row for row in paper_rows("table1") if (row.method, row.loss) == ("RVSE (MLP)", "SelHN"))
    filled = line(rvse, runs)
    assert filled.rsum == pytest.approx(2 * (20.5 + 40.5 + 60.5))
    assert filled.deviation == pytest.approx(6 / 2**0.5)
    assert filled.difference is None, "of other data"
    assert Line(rvse, filled.ours, "").difference == pytest.approx(filled.rsum - 498.6)
    mislabelled = Line(paper_rows("table10")[-1], filled.ours, "")
    assert mislabelled.rsum is not None
    assert mislabelled.difference is None, "no target"
    unknown = replace(rvse, method="another")
    assert line(unknown, runs).note == "not ours yet"
    assert line(unknown, runs).difference is None
    runs.failed[RUNS[("VSE (FC)", "T-HN")][0]] = "no room"
    failed = next(row for row in paper_rows("table1") if (row.method, row.loss) == ("VSE (FC)", "T-HN"))
    assert line(failed, runs).note == "vse_fc_hn: no room"
    runs.data_name = "f30k"
    coco = next(row for row in paper_rows("table3") if row.data == "coco_5k")
    assert line(coco, runs).note.endswith("with --data coco")


def test_the_list_counts_runs():
    lines = describe("world").splitlines()
    assert len(lines) == len(NAMES) + 1 == len(TABLES) + len(FIGURES) + 1
    assert lines[0].split()[:3] == ["table1", "9", "runs"]
    assert lines[-1].split()[:3] == ["all", "46", "runs"]
    assert len(needed_runs(NAMES, "world")) == 46


def test_names():
    assert expand(["fig1", "table2", "fig1"]) == ["table2", "fig1"]
    assert expand(["all"]) == list(NAMES)
    with pytest.raises(NotFound, match="--list"):
        expand([])


def test_diagrams_need_no_data(tmp_path, monkeypatch):
    monkeypatch.setattr(PaperRuns, "data", property(lambda self: 1 / 0))
    assert [path.name for path in reproduce(["fig2", "fig4", "fig9"], "f30k", out=tmp_path)] == [
        "fig2.svg", "fig4.svg", "fig9.svg",
    ]  # fmt: skip
    for name in ("fig2", "fig4", "fig9"):
        assert f"]({name}.svg)" in (tmp_path / "README.md").read_text()
        assert ElementTree.parse(tmp_path / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_figure_without_any_of_its_runs_is_left_out(tmp_path, capsys):
    pytest.importorskip("tokenizers")
    words = [*SMALLER, f"model.bert={tmp_path / 'nothing'}"]
    none = {"fig7": replace(FIGURES["fig7"], runs=(recipe("rvsepp_selhn"),))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selhn.reproduce.comparison.FIGURES", {**FIGURES, **none})
        assert reproduce(["fig7"], "world", out=tmp_path, small=True, settings=words, jobs=1) == []
    assert "none of its runs could be made" in capsys.readouterr().out


def test_a_test_split_that_folds_do_not_divide_is_measured_as_it_is(written_runs, monkeypatch):
    row = next(
        one for one in paper_rows("table10") if one.data == "coco_1k" and (one.method, one.loss) in RUNS
    )
    (member,) = RUNS[(row.method, row.loss)]
    runs = written_runs([member])
    monkeypatch.setattr("selhn.reproduce.comparison.COCO_FOLDS", 7)
    assert runs.data.test.num_images % 7
    found = line(row, runs)
    assert found.rsum is not None
    assert "do not divide by 7: all at once" in found.note


@pytest.mark.parametrize(
    "name", ["runs", "runs/rvse_hn", "runs/rvse_hn/seed0", "measured", "measured/a.json", "tiny_bert"]
)
def test_runs_of_others_are_not_looked_for_through_links(tmp_path, name):
    outside = make_outside(tmp_path / "outside")
    before = content_of(outside)
    plant(tmp_path / "out" / name, "link to a folder", outside)
    with pytest.raises(Linked, match=name.rpartition("/")[2]):
        PaperRuns(tmp_path / "out", "world")
    assert content_of(outside) == before


def test_pages_are_not_written_or_read_through_links(tmp_path):
    outside = make_outside(tmp_path / "outside")
    before = content_of(outside)
    for name in ("fig2.svg", "runs.csv", "README.md"):
        plant(tmp_path / "out" / name, "link to a file", outside)
    reproduce(["fig2"], "world", out=tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    plant(tmp_path / "out" / "table1.md", "link to a file", outside)
    with pytest.raises(Linked):
        reproduce(["fig2"], "world", out=tmp_path / "out")
    assert "secret" not in (tmp_path / "out" / "README.md").read_text()
    assert content_of(outside) == before
