import json

import pytest
import yaml

from selhn.base.errors import Linked, SelhnError
from selhn.diagnose import diagnose, from_rows
from selhn.runs import read_log
from selhn.training import get_recipe, override, run_config

STILL = [{"step": step, "epoch": step // 80, "loss_per_anchor": 0.2, "delta_s": 0.001, "spread": 0.002}
         for step in range(1, 801)]  # fmt: skip


def a_run(folder, rows, *settings):
    folder.mkdir()
    config = override(get_recipe("rvse_selhn_world"), settings)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_run_says_what_loss_it_has(tmp_path):
    verdict, log, plateau, _ = diagnose(a_run(tmp_path / "hn", STILL, "loss=hn"))
    assert (verdict.kind, plateau) == ("stalled", 0.2)
    assert len(log.loss) == 800
    assert "loss=selhn" in verdict.remedy
    verdict, *_ = diagnose(a_run(tmp_path / "selhn", STILL))
    assert "larger epsilon" in verdict.remedy
    wide = [{**row, "delta_s": 0.045, "s_p": 0.5, "s_n": 0.46} for row in STILL]
    assert diagnose(a_run(tmp_path / "wide", wide))[0].kind == "healthy"
    assert diagnose(a_run(tmp_path / "wider", wide, "loss.epsilon=0.05"))[0].kind == "stalled"
    assert diagnose(a_run(tmp_path / "narrow", STILL, "loss.epsilon=0.00001"))[0].kind == "stalled", (
        "as T-HN does"
    )


def test_the_plateau_is_that_of_the_phase_the_run_ended_in(tmp_path):
    assert diagnose(a_run(tmp_path / "warm", STILL, "loss=warmup"))[2] == 0.2
    short = [row for row in STILL if not row["epoch"]]
    assert diagnose(a_run(tmp_path / "short", short, "loss=warmup"))[2] == pytest.approx(0.2 * 127)
    assert diagnose(a_run(tmp_path / "ssp", STILL, "loss=ssp"))[0].kind == "stalled", "delta_s is enough"


def test_a_loss_is_judged_as_its_run_takes_it(tmp_path):
    # NCR averages in its first five epochs, and may stand still for longer there.
    moving = {"loss_per_anchor": 0.15, "delta_s": 0.05}
    warming = [{**row, "epoch": row["step"] // 161, **(moving if row["step"] < 430 else {})} for row in STILL]
    assert diagnose(a_run(tmp_path / "ncr", warming, "loss=ncr"))[0].kind != "stalled"
    assert (
        diagnose(a_run(tmp_path / "mining", warming, "loss=ncr", "loss.warmup_epochs=0"))[0].kind == "stalled"
    )


def test_a_real_run_and_its_probe(small_dev_and_test, tmp_path):
    settings = ["data.images=100", "epochs=2", "batch_size=64", "model.dim=16", "device=cpu"]
    run_config(override(get_recipe("rvse_selhn_world"), settings), tmp_path / "run", quiet=True)
    verdict, log, plateau, _ = diagnose(tmp_path / "run")
    assert plateau == 0.2
    assert len(log.dev) == 2
    assert len(log.evaluated["tangent"]) == len(log.evaluated["rank_texts"]) == 2
    assert {"step", "epoch", "dev", "probe"} == set(read_log(tmp_path / "run" / "log.jsonl")[-1])
    assert any("effective rank of the images" in one for one in verdict.evidence)
    (tmp_path / "run" / "config.yaml").unlink()
    assert diagnose(tmp_path / "run")[2] is None


def test_a_foreign_log_in_a_folder(tmp_path):
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{row['step']},51.2\n" for row in STILL))
    verdict, _, plateau, _ = diagnose(tmp_path)
    assert verdict.kind == "stalled"
    assert plateau == pytest.approx(51.2)
    assert "256 x margin" in verdict.why
    assert diagnose(tmp_path / "log.csv", margin=0.1, batch=64)[0].kind == "unclear"
    (tmp_path / "other.csv").write_text("loss\n1\n")
    with pytest.raises(SelhnError):
        diagnose(tmp_path)


def test_numbers_of_the_scores_say_more_than_a_guess(tmp_path):
    path = tmp_path / "probe.jsonl"
    path.write_text("".join(json.dumps({**row, "loss_per_anchor": 3.3}) + "\n" for row in STILL))
    assert diagnose(path)[0].kind == "stalled"
    assert from_rows(STILL).loss_name == "loss_per_anchor"


def test_a_sum_has_the_plateau_of_a_sum(tmp_path):
    rows = [{**row, "loss": 51.2, "lr": 0.1} for row in STILL]
    run = a_run(tmp_path / "run", rows, "loss=hn", "loss.reduction=sum", "batch_size=128")
    for column, plateau in ((None, 0.2), ("loss_per_anchor", 0.2), ("loss", 51.2), ("lr", None)):
        found = diagnose(run, column=column)
        assert found.verdict.kind == "stalled"
        assert found.plateau == (plateau and pytest.approx(plateau))
    assert "0.2 for each of 256 anchors" in diagnose(run, column="loss").verdict.why


def test_what_a_run_says_of_itself_is_not_told_otherwise(tmp_path):
    run = a_run(tmp_path / "run", STILL, "loss=hn")
    for told in ({"margin": 0.3}, {"batch": 0}):  # a 0 is told too, and not passed over
        with pytest.raises(SelhnError):
            diagnose(run, **told)
    with pytest.raises(SelhnError):
        diagnose(run / "log.jsonl", batch=0)
    assert diagnose(a_run(tmp_path / "wide", STILL, "loss.epsilon=0.05")).epsilon == 0.05


def test_a_log_without_a_configuration_is_read_as_a_file_would_be(tmp_path):
    rows = [{"step": row["step"], "loss": 51.2} for row in STILL]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "events.out.tfevents.1").write_text("beside it")
    for where in (tmp_path, tmp_path / "log.jsonl"):
        assert diagnose(where).verdict.kind == "stalled"
        assert diagnose(where, margin=0.1, batch=64).verdict.kind == "unclear"


@pytest.mark.parametrize("settings", ["[1]", "{1: 2}", "3", "{margin: x}", "{nope: 1}"])
def test_settings_of_a_loss_that_are_none(tmp_path, settings):
    run = a_run(tmp_path / "run", STILL)
    (run / "config.yaml").write_text(f"loss: selhn\nloss_settings: {settings}\ntrain: {{batch_size: 64}}\n")
    with pytest.raises(SelhnError):
        diagnose(run)


def test_the_only_log_of_a_folder_may_not_be_a_link(tmp_path):
    """A log that is named itself may be one."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine.csv").write_text("step,loss\n1,0.5\n2,0.4\n")
    (tmp_path / "folder" / "log.csv").symlink_to(tmp_path / "mine.csv")
    with pytest.raises(Linked):
        diagnose(tmp_path / "folder")
    assert diagnose(tmp_path / "folder" / "log.csv").verdict.kind
