import json

from drawn_verdicts import LOSSES, Drawn, draw, report, truths


def test_a_commit_decides_the_runs():
    runs = list(draw("abc", 60, 3))
    assert runs == list(draw("abc", 60, 3))
    assert runs != list(draw("abd", 60, 3))
    assert len({run.name for run in runs}) == len(runs) == 63
    assert {run.loss for run in runs} == set(LOSSES)
    assert [run.loss for run in runs if run.lr == 1e-5 and run.steps == 2000][:4] == [
        "hn",
        "selhn",
        "hn",
        "selhn",
    ]


def test_truth_is_what_was_reached():
    ends = {"best": [10, 300, 400, 400], "learnt": [10, 300, 310, 310], "slow": [10, 90, 100, 150]}
    ends["stands"] = [10, 150, 150, 150]
    found = {Drawn(name, 0.1, 0): rsums for name, rsums in ends.items()}
    said = {job.loss: truth for job, (truth, _) in truths(found).items()}
    assert said == {"best": "learnt", "learnt": "learnt", "slow": "slow", "stands": "failed"}


def test_a_report_has_every_misjudged_run(tmp_path):
    jobs = {Drawn("hn", 1e-5, 0): [16, 20, 17], Drawn("triplet", 2e-3, 1): [16, 300, 500]}
    for job in jobs:
        rows = [
            {"step": s, "loss": 25.6, "delta_s": 0.002, "spread": 0.01, "s_p": 0.5, "s_n": 0.5}
            for s in range(1, 801)
        ]
        (tmp_path / job.name).mkdir()
        (tmp_path / job.name / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = report(jobs, tmp_path, "abc")
    assert "3 misjudged of 36" in text
    assert "plain2000-sum64-2000-triplet-lr0.002-seed1 at 100% (its log): learnt 1.00, stalled" in text
