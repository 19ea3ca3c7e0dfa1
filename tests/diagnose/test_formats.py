"""The logs that people have, each in its real format; all show a T-HN that stalls at its plateau."""

import io
import json
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from selhn.base.errors import Damaged, SelhnError
from selhn.diagnose import diagnose, read_foreign

LOGS = Path(__file__).parent / "logs"
CHANCE = random.Random(0)
STEPS = range(0, 2000, 10)
SUMS = [51.2 * (1 + 0.25 * 0.985**step + CHANCE.gauss(0, 0.001)) for step in STEPS]
"""Of a batch of 128: every tenth step, as VSE++ prints it."""


def vsepp_log(batches=700):
    """As VSE++ and SCAN print: a time, epoch and batch, `Le` with its average, and an evaluation every 500 steps."""
    yield "Namespace(batch_size=128, learning_rate=0.0002, log_step=10, margin=0.2, max_violation=True, val_step=500)"
    for step, loss in zip(STEPS, SUMS):
        epoch, batch = divmod(step, batches)
        yield (
            f"2018-03-01 10:00:00,123 Epoch: [{epoch}][{batch}/{batches}]\tEit {step}  lr 0.0002  "
            f"Le {loss:.4f} ({loss + 0.1:.4f})\tTime 0.123 (0.130)\tData 0.001 (0.002)\t"
        )
        if step % 500 == 490:
            yield "2018-03-01 10:00:09,123 Test: [0/40]\tLe 97.1234 (97.1234)\tTime 0.203 (0.000)\t"
            yield "2018-03-01 10:00:10,123 Image to text: 0.1, 0.5, 1.0, 498.0, 510.2"
            yield "2018-03-01 10:00:11,123 Text to image: 0.2, 0.6, 1.1, 497.0, 507.9"


def wandb_export(run="brisk-pond-1"):
    yield f'"Step","{run} - train/loss","{run} - train/loss__MIN","{run} - train/loss__MAX"'
    for step, loss in zip(STEPS, SUMS):
        yield f'"{step}","{loss}","{loss - 3}","{loss + 3}"'


FORMS = {
    "vsepp.log": "\n".join(vsepp_log()),
    "vsepp_console.txt": "\n".join(line[24:] for line in vsepp_log() if line[24:].startswith("Epoch")),
    "imagenet.out": "\n".join(
        f"Epoch: [{step // 700}][{step % 700:4d}/700]\tTime  0.3 ( 2.1)\tLoss {loss:.4e} ({loss:.4e})\tAcc@1   0.00"
        for step, loss in zip(STEPS, SUMS)
    ),
    "plain.txt": "\n".join(
        f"step {step}: train loss = {loss:.3f}, lr = 2e-4" for step, loss in zip(STEPS, SUMS)
    ),
    "console.txt": "\n".join(
        str({"loss": round(loss, 4), "grad_norm": 0.1, "step": step}) for step, loss in zip(STEPS, SUMS)
    ),
    "bars.txt": "\r".join(
        f"  1%|          | {step}/2000 [00:10<09:10, 4.81it/s, step={step}, loss={loss:.2f}]"
        for step, loss in zip(STEPS, SUMS)
    ),
    "wandb_export_2026-11-16.csv": "\n".join(wandb_export()),
    "excel.csv": "Schritt;step;loss\n"
    + "\n".join(
        f"{at};{step};{loss:.4f}".replace(".", ",") for at, (step, loss) in enumerate(zip(STEPS, SUMS))
    ),
    "no_names.csv": "\n".join(f"{step},{loss:.4f}" for step, loss in zip(STEPS, SUMS)),
    "no_names_comma.csv": "\n".join(
        f"{step};{loss:.4f}".replace(".", ",") for step, loss in zip(STEPS, SUMS)
    ),
    "list.json": json.dumps([{"step": step, "loss": loss} for step, loss in zip(STEPS, SUMS)]),
    "trainer_state.json": json.dumps(
        {
            "global_step": 1990,
            "log_history": [{"step": step, "loss": loss} for step, loss in zip(STEPS, SUMS)],
        },
        indent=2,
    ),
}


def pasted(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return "-"


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("is_pasted", [False, True])
def test_every_form_is_read_and_judged(tmp_path, monkeypatch, name, is_pasted):
    path = pasted(monkeypatch, FORMS[name]) if is_pasted else tmp_path / name
    if not is_pasted:
        path.write_text(FORMS[name], newline="")
    verdict, log, plateau, _ = diagnose(path)
    assert log.loss == pytest.approx(SUMS, abs=6e-3)
    assert log.steps.tolist() == list(STEPS)
    assert (verdict.kind, plateau) == ("stalled", pytest.approx(51.2))
    assert (
        diagnose(path if not is_pasted else pasted(monkeypatch, FORMS[name]), batch=128).verdict.kind
        == "stalled"
    )


def test_a_state_that_hugging_face_saved():
    """Written by `TrainerState.save_to_json` of transformers, with the losses of a run of the plain loop."""
    verdict, log, _, _ = diagnose(LOGS / "trainer_state.json")
    assert len(log.loss) == 49
    assert log.steps[-1] == 980
    assert len(log.dev_loss) == 4
    assert verdict.kind == "stalled"


def test_what_vsepp_prints_beside_its_loss(tmp_path):
    (tmp_path / "log.txt").write_text(FORMS["vsepp.log"])
    log = read_foreign(tmp_path / "log.txt")
    assert [rsum for _, rsum in log.dev] == pytest.approx([3.5] * 4)
    assert [step for step, _ in log.dev] == [490, 990, 1490, 1990]
    assert {value for _, value in log.dev_loss} == {97.1234}


def test_lines_about_held_out_data_are_not_training(tmp_path):
    lines = [
        f"Epoch {at}\nTraining loss: {1 / (at + 1):.3f}\nValidation loss: {2.0 + at}" for at in range(20)
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    log = read_foreign(tmp_path / "log.txt")
    assert log.loss.tolist() == pytest.approx([1 / (at + 1) for at in range(20)], abs=1e-3)
    assert [value for _, value in log.dev_loss] == [2.0 + at for at in range(20)]


def test_an_export_of_several_runs_asks_which(tmp_path):
    first, second = list(wandb_export("a")), list(wandb_export("b - 2"))
    both = [f"{one},{other.partition(',')[2]}" for one, other in zip(first, second)]
    (tmp_path / "both.csv").write_text("\n".join(both))
    with pytest.raises(SelhnError, match="a - train/loss, b - 2 - train/loss"):
        read_foreign(tmp_path / "both.csv")
    assert read_foreign(tmp_path / "both.csv", "b - 2 - train/loss").loss == pytest.approx(SUMS)


def test_a_table_without_names_and_with_more_columns_asks_which(tmp_path):
    (tmp_path / "log.csv").write_text("".join(f"{at},{1 / (at + 1)},0.1\n" for at in range(9)))
    with pytest.raises(SelhnError, match="step, column 2, column 3"):
        read_foreign(tmp_path / "log.csv")
    log = read_foreign(tmp_path / "log.csv", "column 2")
    assert (log.steps[-1], log.loss[-1]) == (8, pytest.approx(1 / 9))
    (tmp_path / "one.csv").write_text("0.5\n0.4\n0.3\n")
    assert read_foreign(tmp_path / "one.csv").loss.tolist() == [0.5, 0.4, 0.3]


HOSTILE = {
    "words": "loss " * 400_000,
    "letters": "l" * 2_000_000,
    "almost": "loss:" + " " * 1_000_000 + "x",
    "digits": "loss " + "9" * 1_000_000,
    "brackets": "Epoch: [" + " " * 1_000_000,
    "recalls": "Image to text: " + "1, " * 500_000,
    "lines": "loss 1\n" * 100_000,
    "nested": '{"a": ' * 900 + "1" + "}" * 900,
    "deep": "[" * 200_000,
    "nothing": "",
    "binary": "\0\1\2" * 1000,
    "columns": ",".join(["loss"] * 100_000),
    "quote": '"' + "x,\n" * 100_000,
}


def test_a_document_may_begin_with_empty_lines(tmp_path):
    for text in (
        json.dumps([{"step": 1, "loss": 2.0}], indent=1),
        '{"step": 1, "loss": 2.0}\n{"step": 2, "lo',
    ):
        (tmp_path / "log.json").write_text(f"\n \n{text}")
        assert read_foreign(tmp_path / "log.json").loss.tolist() == [2.0]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".json"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long_or_fails_otherwise(tmp_path, name, suffix):
    path = tmp_path / f"log{suffix}"
    path.write_text(HOSTILE[name])
    began = time.process_time()
    with suppress(SelhnError):
        diagnose(path)
    # A reader that looks at a text again for every character takes hours.
    assert time.process_time() - began < 30


def test_too_much_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("selhn.diagnose.formats.MOST_TEXT", 100)
    path = tmp_path / "log.txt"
    path.write_text("loss 1\n" * 100)
    for one in (path, pasted(monkeypatch, "loss 1\n" * 100)):
        with pytest.raises(SelhnError, match="100 bytes"):
            read_foreign(one)
    monkeypatch.setattr("selhn.diagnose.formats.MOST_TEXT", 10_000)
    monkeypatch.setattr("selhn.diagnose.formats.LONGEST_DOCUMENT", 200)
    for name in ("list.json", "trainer_state.json"):
        (tmp_path / name).write_text(FORMS[name][:9000])
        with pytest.raises(SelhnError, match="200 bytes"):
            read_foreign(tmp_path / name)


def test_what_is_not_text(tmp_path, monkeypatch):
    (tmp_path / "log.txt").write_bytes(b"loss \xff\xfe 1\n")
    with pytest.raises(Damaged):
        read_foreign(tmp_path / "log.txt")
    with pytest.raises(SelhnError):
        read_foreign(pasted(monkeypatch, "good morning\n"))
