import json
from dataclasses import replace
from xml.etree import ElementTree

from run_cases import section

from selhn.diagnose import Verdict
from selhn.report.curves import panels
from selhn.report.page import page
from selhn.report.records import lead, read_runs


def part(name):
    return lambda runs: section(page(runs, None), name).strip()


verdicts, results, settings, environment = map(part, ("verdict", "results", "settings", "environment"))


def words(html):
    return " ".join("".join(ElementTree.fromstring(f"<div>{html}</div>").itertext()).split())


def table(html):
    tree = ElementTree.fromstring(f"<div>{html}</div>")
    return [[" ".join("".join(cell.itertext()).split()) for cell in row] for row in tree.iter("tr")]


def test_the_best_of_every_column_is_bold(write_run):
    runs = read_runs([write_run("worse", level=10), write_run("better", level=20)])
    html = results(runs)
    shown = table(html)
    assert shown[3][:4] == ["worse", "10.0", "30.0", "50.0"]
    assert shown[4][:4] == ["better", "20.0", "40.0", "60.0"]
    assert shown[4][-2:] == ["240.0", "4"]
    rows = [
        row
        for row in ElementTree.fromstring(f"<div>{html}</div>").iter("tr")
        if row.find("td/strong") is not None
    ]
    assert ["".join(row.find("th").itertext()) for row in rows] == ["better", "better"]
    assert all(len(row.findall("td/strong")) == 7 for row in rows)
    alone = results(runs[:1])
    assert "<strong>" not in alone, "nothing to be better than"


def test_headers_belong_to_their_cells(write_run):
    tree = ElementTree.fromstring(f"<div>{results(read_runs([write_run('a'), write_run('b')]))}</div>")
    assert {head.get("scope") for head in tree.iter("th")} == {"col", "colgroup", "row", "rowgroup"}
    widths = {sum(int(cell.get("colspan", 1)) for cell in row) for row in tree.iter("tr")}
    assert widths == {9}


def test_a_run_that_is_not_finished(record):
    run = record("short", finished=False)
    html = results([run])
    assert "On dev" in html
    assert "On test" not in html
    assert "not finished: short" in html
    assert "not finished" in lead([run])
    empty = record("empty", finished=False, log=[{"step": 1, "loss": 0.3}])
    assert words(results([empty])).startswith("Nothing has been measured yet")
    assert "1 step, not finished: unclear, nothing measured yet" in lead([empty])


def test_a_verdict_with_its_evidence_and_remedy(record):
    stalled = Verdict("stalled", 155, "the loss sits still", ("loss <b>0.2</b>",), "train otherwise")
    run = record("hn", "loss=hn")
    run = replace(run, found=run.found._replace(verdict=stalled), alarm="Training has stalled.")
    said = words(verdicts([run]))
    for part in ("stalled since step 155", "The loss sits still.", "loss <b>0.2</b>", "What helps: train otherwise.",
                 "the alarm said: “Training has stalled.”", "rvse with hn on world"):  # fmt: skip
        assert part in said
    healthy = Verdict("healthy", None, "it learns", (), "nothing to fix")
    fine = replace(run, found=run.found._replace(verdict=healthy), alarm=None)
    assert "What helps" not in verdicts([fine])


def test_the_page_in_two_sentences(write_run):
    runs = read_runs([write_run("a", level=10), write_run("b", level=20), write_run("c", level=15)])
    assert lead(runs).startswith("3 runs, of which b is the best (RSUM 240.0 on test).")
    assert lead(runs[:1]).startswith("rvse with selhn on world, 40 steps: ")


def test_runs_on_different_data_are_not_compared(write_run):
    folders = [
        write_run("small", level=10),
        write_run("large", "data.images=200", level=40),
        write_run("best", level=20),
    ]
    runs = read_runs(folders)
    said = lead(runs)
    assert said.startswith(
        "3 runs on 2 data sets, which cannot be compared. On world, images=100, width=32: best is the best"
    )
    assert "On world, images=200, width=32: only large (RSUM 360.0 on test)." in said
    html = results(runs)
    rows = [
        row
        for row in ElementTree.fromstring(f"<div>{html}</div>").iter("tr")
        if row.find("td/strong") is not None
    ]
    assert ["".join(row.find("th").itertext()) for row in rows] == ["best", "best"], "large has none to beat"
    assert [row[0].split(",")[0] for row in table(html) if len(row) == 1] == [
        "On test of world", "On dev of world", "On test of world", "On dev of world"
    ]  # fmt: skip
    measured = [panel for panel in panels(runs) if panel.measured]
    assert [[curve.name for curve in panel.curves] for panel in measured] == [["small", "best"], ["large"]]
    assert len({panel.title for panel in measured}) == 2


def test_the_data_of_a_run_is_what_it_says_in_training(write_run):
    folders = [write_run("a", level=20), write_run("b", level=10)]
    for folder, crc in zip(folders, ("00000001", "00000002")):  # one name and size, other captions
        data = f"f8k, 100 images, 500 texts, which begin as {crc}"
        (folder / "identity.json").write_text(json.dumps({"data": data}))
    assert "2 data sets" in lead(read_runs(folders))
    unknown = [write_run("c", configured=False), write_run("d", configured=False)]
    assert "2 data sets" in lead(read_runs(unknown)), "what nobody knows is not the same"


def test_a_run_measured_on_dev_does_not_beat_one_measured_on_test(write_run):
    runs = read_runs([write_run("short", level=30, finished=False), write_run("whole", level=10)])
    assert "whole is the best (RSUM 180.0 on test)" in lead(runs)


def test_settings_that_differ_come_first(write_run):
    runs = read_runs([write_run("a", "loss=hn"), write_run("b", "loss.epsilon=0.02", "lr=0.001")])
    differing, whole = settings(runs).split("<details>")
    assert table(differing) == [
        ["name", "a", "b"],
        ["loss", "hn", "selhn"],
        ["train.lr", "0.0005", "0.001"],
        ["loss_settings.epsilon", "–", "0.02"],
    ]
    assert "train.batch_size" in whole
    same = read_runs([write_run("c"), write_run("d")])
    assert "All settings are the same." in settings(same)
    assert settings(same[:1]).startswith("<details>")
    bare = [replace(same[0], settings={})]
    assert "does not say how" in settings(bare)


def test_one_column_for_one_environment(write_run):
    runs = read_runs([write_run("a"), write_run("b")])
    assert table(environment(runs))[0] == ["torch", "2.10"]
    differing = [runs[0], replace(runs[1], environment={"torch": "2.11"})]
    assert table(environment(differing))[:3] == [
        ["name", "a", "b"],
        ["torch", "2.10", "2.11"],
        ["device", "cpu", "–"],
    ]
    assert "does not say where" in environment([replace(runs[0], environment={})])
