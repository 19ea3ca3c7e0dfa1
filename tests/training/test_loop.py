import os
import signal
from dataclasses import replace

import pytest
import torch

from selhn.base.errors import Locked, SelhnError
from selhn.base.files import writing
from selhn.data import DenseFeatures, load_data
from selhn.diagnose import StallAlarm, diagnose, make_alarm
from selhn.eval import evaluate
from selhn.losses import InfoNCE, Triplet, TripletHN, TripletSelHN, TripletWarmUp
from selhn.models import load_model
from selhn.runs import RunFolder, read_log
from selhn.training import loop
from selhn.training import state as states
from selhn.training import step as steps
from selhn.training.loop import train


def test_a_run_leaves_all_that_is_needed(tmp_path, tiny_model, tiny_data, tiny_config):
    model = tiny_model()
    run = train(model, tiny_data, TripletSelHN(), out=tmp_path / "run", config=tiny_config, quiet=True)
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {
        "config.yaml",
        "identity.json",
        "env.json",
        "log.jsonl",
        "checkpoints",
        "best",
        "results.json",
    } <= files
    rows = read_log(tmp_path / "run" / "log.jsonl")
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == list(range(1, 2 * (500 // 64) + 1))
    numbers = {"loss", "loss_per_anchor", "delta_s", "separated", "s_p", "s_n", "spread"}
    gradients = {"grad_image", "grad_text", "grad_image_fc", "grad_text_last"}
    assert numbers | gradients <= set(steps[0])
    assert all(row["grad_image"] > 0 and row["grad_text_last"] > 0 for row in steps)
    assert [row["epoch"] for row in rows if "dev" in row] == [0, 1]
    again = load_model(tmp_path / "run" / "best")
    assert evaluate(again, tiny_data.test) == run.test == evaluate(model, tiny_data.test)
    assert run.dev.rsum == max(row["dev"]["rsum"] for row in rows if "dev" in row)
    assert RunFolder(tmp_path / "run").verdict["why"] == diagnose(tmp_path / "run").verdict.why


def test_training_learns(tmp_path, tiny_model, tiny_data, tiny_config):
    train(
        tiny_model("vse_fc"),
        tiny_data,
        Triplet(),
        out=tmp_path,
        config=tiny_config,
        epochs=10,
        lr=5e-3,
        quiet=True,
    )
    losses = [row["loss"] for row in read_log(tmp_path / "log.jsonl") if "loss" in row]
    assert sum(losses[-7:]) < 0.6 * sum(losses[:7])


def test_the_best_epoch_comes_back_without_a_folder(tiny_model, tiny_data, tiny_config):
    model = tiny_model()
    run = train(model, tiny_data, TripletSelHN(), config=tiny_config, quiet=True)
    assert evaluate(model, tiny_data.dev) == run.dev


def test_a_foreign_loss_works(tiny_model, tiny_data, tiny_config):
    def cross_entropy(scores):
        return torch.nn.functional.cross_entropy(scores / 0.05, torch.arange(len(scores)))

    run = train(tiny_model(), tiny_data, cross_entropy, config=tiny_config, quiet=True)
    assert run.stalled is None
    assert run.test.rsum > 0


def test_seeds_decide_everything(tiny_model, tiny_data, tiny_config):
    runs = []
    for before, seed in ((5, 1), (6, 1), (5, 2)):
        model = tiny_model("vse_fc", word_dropout=0.5)
        torch.manual_seed(before)  # what was drawn before a run does not matter
        runs.append(train(model, tiny_data, TripletHN(), config=tiny_config, seed=seed, quiet=True))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_loop_follows_the_schedule(tmp_path, tiny_model, tiny_data, tiny_config):
    still = {"decay_at": (1,), "decay_by": 0.0}
    train(tiny_model("vse_fc"), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, quiet=True, **still)
    first, second = (row["dev"] for row in read_log(tmp_path / "log.jsonl") if "dev" in row)
    assert first == second, "the second epoch has a rate of 0"


def test_the_sum_reduction_is_logged_per_anchor(tmp_path, tiny_model, tiny_data, tiny_config):
    train(
        tiny_model(), tiny_data, TripletHN.official(), out=tmp_path, config=tiny_config, epochs=1, quiet=True
    )
    row = read_log(tmp_path / "log.jsonl")[0]
    assert row["loss_per_anchor"] == pytest.approx(row["loss"] / 128, rel=1e-4)


def test_only_the_same_run_is_resumed(tmp_path, tiny_model, tiny_data, tiny_config):
    train(tiny_model(), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, epochs=1, quiet=True)
    with pytest.raises(SelhnError, match="loss was"):
        train(tiny_model(), tiny_data, Triplet(), out=tmp_path, config=tiny_config, resume=True, quiet=True)
    with pytest.raises(SelhnError, match="nothing to resume"):
        train(tiny_model(), tiny_data, TripletHN(), config=tiny_config, resume=True, quiet=True)
    more = train(
        tiny_model(), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, resume=True, quiet=True
    )
    assert more.best_epoch in (0, 1)
    assert [row["epoch"] for row in read_log(tmp_path / "log.jsonl") if "dev" in row] == [0, 1]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_saves_and_says_how_to_go_on(
    tmp_path, tiny_model, tiny_data, tiny_config, monkeypatch, capsys, name, default_signals
):
    step, count, number = steps.training_step, [0], getattr(signal, name)

    def sent_at_third(*args):
        count[0] += 1
        if count[0] == 3:
            os.kill(os.getpid(), number)
        return step(*args)

    monkeypatch.setattr(steps, "training_step", sent_at_third)
    with pytest.raises(KeyboardInterrupt if name == "SIGINT" else SystemExit) as stopped:
        train(tiny_model(), tiny_data, TripletHN(), out=tmp_path, config=tiny_config)
    said = capsys.readouterr().out, "click swallows the exception, so the loop says it too"
    assert "Stopped after 3 steps; all of it is saved. Continue with: selhn train --resume" in said[0], said[
        1
    ]
    if name == "SIGINT":
        assert "all of it is saved" in str(stopped.value)
    else:
        assert stopped.value.code == 128 + number
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_00000003_epoch_0000.pt"]
    if name == "SIGTERM":
        run = train(
            tiny_model(), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, resume=True, quiet=True
        )
        assert run.test.rsum > 0


def test_a_signal_while_dev_is_measured(tmp_path, tiny_model, tiny_data, tiny_config, monkeypatch):
    from selhn.training import loop

    measure = loop.evaluate
    monkeypatch.setattr(
        loop, "evaluate", lambda *args: (signal.raise_signal(signal.SIGTERM), measure(*args))[1]
    )
    with pytest.raises(SystemExit):
        train(tiny_model(), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, epochs=1, quiet=True)
    (path,) = (tmp_path / "checkpoints").iterdir()
    assert path.stem.endswith("epoch_0001")


def test_the_alarm_fits_the_loss():
    assert make_alarm(TripletHN(), 100).patience == 250
    assert make_alarm(TripletSelHN(epsilon=0.03), 100).patience == 400
    assert make_alarm(TripletSelHN(epsilon=0.03), 100).epsilon == 0.03
    assert make_alarm(TripletSelHN(epsilon=1e-4), 100).epsilon == 0.01, "it mines below, and may stall there"
    assert make_alarm(InfoNCE(), 100).patience == 400
    assert make_alarm(lambda scores: scores.sum(), 100) is None


def test_the_alarm_follows_the_phase_of_a_loss(tiny_model, tiny_data, tiny_config, monkeypatch):
    seen = []

    class Spy(StallAlarm):
        def update(self, step, row):
            seen.append((self.plateau, self.patience))
            return super().update(step, row)

    monkeypatch.setattr(states, "make_alarm", lambda loss, steps: Spy(None))
    train(tiny_model(), tiny_data, TripletWarmUp(), config=tiny_config, quiet=True)
    steps = len(seen) // 2
    assert set(seen[:steps]) == {(0.2 * 63, 250)}
    assert set(seen[steps:]) == {(0.2, 250)}


def test_another_model_of_the_same_size_is_not_resumed(tmp_path, tiny_model, tiny_data, tiny_config):
    train(tiny_model("rvse"), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, epochs=1, quiet=True)
    with pytest.raises(SelhnError, match="model was"):
        train(
            tiny_model("vse_mlp"),
            tiny_data,
            TripletHN(),
            out=tmp_path,
            config=tiny_config,
            resume=True,
            quiet=True,
        )
    other = load_data("world", images=100, seed=5)
    with pytest.raises(SelhnError, match="data was"):
        train(
            tiny_model("rvse"), other, TripletHN(), out=tmp_path, config=tiny_config, resume=True, quiet=True
        )


def test_the_verdict_survives_a_resume(tmp_path, tiny_model, tiny_data, tiny_config, monkeypatch):
    # With such a margin the loss per anchor is always within 2 % of it.
    monkeypatch.setattr(states, "make_alarm", lambda loss, steps: StallAlarm(loss.margin, epsilon=9.0))
    monkeypatch.setattr(loop, "patience", lambda loss, steps: 0)
    setting = {"out": tmp_path, "config": tiny_config, "quiet": True}
    first = train(tiny_model(), tiny_data, TripletHN(margin=50.0), epochs=1, **setting)
    assert first.stalled is not None
    again = train(tiny_model(), tiny_data, TripletHN(margin=50.0), epochs=2, resume=True, **setting)
    assert again.stalled == first.stalled


def test_a_model_of_ones_own(tmp_path, tiny_model, tiny_data, tiny_config):
    def make():
        model = tiny_model()
        model.name, model.settings = None, {}
        return model

    train(make(), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, epochs=1, quiet=True)
    model = make()
    run = train(model, tiny_data, TripletHN(), out=tmp_path, config=tiny_config, resume=True, quiet=True)
    assert evaluate(model, tiny_data.test) == run.test


def test_features_that_do_not_fit(tiny_model, tiny_data, tiny_config):
    narrow = load_data("world", images=100, width=64)
    with pytest.raises(SelhnError, match="train"):
        train(tiny_model(), narrow, TripletHN(), config=tiny_config, quiet=True)
    with pytest.raises(SelhnError, match="test"):
        evaluate(tiny_model(), narrow.test)
    features, _ = tiny_data.train.features.gather(torch.arange(100))
    features[17, 2, 3] = torch.nan
    spoilt = replace(tiny_data, train=replace(tiny_data.train, features=DenseFeatures(features)))
    with pytest.raises(SelhnError, match="image 17"):
        train(tiny_model(), spoilt, TripletHN(), config=tiny_config, quiet=True)
    with pytest.raises(SelhnError, match="image 17"):
        evaluate(tiny_model(), spoilt.train)


def test_going_on_for_longer_takes_the_old_result_back(tmp_path, tiny_model, tiny_data, tiny_config):
    def go_on(**settings):
        return train(
            tiny_model(), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, quiet=True, **settings
        )

    go_on(epochs=1)
    before = (tmp_path / "results.json").read_bytes()
    go_on(epochs=1, resume=True)
    assert (tmp_path / "results.json").read_bytes() == before, "there was nothing left to do"

    class Broken(TripletHN):
        def reduce(self, *args, **settings):
            raise ValueError("broken off")

    Broken.__name__ = "TripletHN"
    with pytest.raises(ValueError, match="broken off"):
        train(
            tiny_model(),
            tiny_data,
            Broken(),
            out=tmp_path,
            config=tiny_config,
            quiet=True,
            epochs=3,
            resume=True,
        )
    assert not (tmp_path / "results.json").exists(), "one epoch is no result of a run of three"
    go_on(epochs=2, resume=True)
    with pytest.raises(SelhnError, match="2 epochs"):
        go_on(epochs=1, resume=True)
    assert (tmp_path / "results.json").exists()


def test_a_loss_of_many_numbers_is_refused_before_anything_is_written(
    tmp_path, tiny_model, tiny_data, tiny_config
):
    with pytest.raises(SelhnError):
        train(tiny_model(), tiny_data, TripletHN(reduction="none"), out=tmp_path / "run", config=tiny_config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", [TripletSelHN, "selhn"])
def test_a_name_or_a_class_is_not_a_loss(as_a_user, tmp_path, tiny_model, tiny_data, tiny_config, loss):
    with pytest.raises(SelhnError):
        train(tiny_model(), tiny_data, loss, out=tmp_path / "run", config=tiny_config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_another_process_is_writing_is_refused(
    tiny_data, tiny_model, tiny_config, tmp_path, resume
):
    def start(resume):
        return train(
            tiny_model(),
            tiny_data,
            TripletSelHN(),
            out=tmp_path,
            config=tiny_config,
            resume=resume,
            quiet=True,
        )

    if resume:
        start(False)
    with writing(tmp_path):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(Locked):
            start(resume)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert start(resume).test.rsum > 0, "and afterwards it may begin, or go on"


def test_a_folder_that_holds_a_run_is_refused_before_any_work(
    tmp_path, tiny_data, tiny_model, tiny_config, monkeypatch
):
    train(
        tiny_model("vse_fc"), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, epochs=1, quiet=True
    )
    for work in ("on_device", "make_batches"):
        monkeypatch.setattr(
            states, work, lambda *args, **kwargs: pytest.fail("features and texts were prepared")
        )
    with pytest.raises(SelhnError):
        train(tiny_model("vse_fc"), tiny_data, TripletHN(), out=tmp_path, config=tiny_config, quiet=True)


def test_parts_in_another_order_train_and_measure_alike(tmp_path, tiny_model, tiny_data, tiny_config):
    def backwards(split):
        return split.some(torch.arange(split.num_images).flip(0))

    mixed = replace(tiny_data, train=backwards(tiny_data.train), dev=backwards(tiny_data.dev))
    runs = [
        train(tiny_model("vse_fc"), data, Triplet(), out=tmp_path / name, config=tiny_config, quiet=True)
        for name, data in (("straight", tiny_data), ("mixed", mixed))
    ]
    model = load_model(tmp_path / "mixed")
    assert evaluate(model, mixed.dev) == evaluate(model, tiny_data.dev)
    losses = [
        [row["loss"] for row in read_log(tmp_path / name / "log.jsonl") if "loss" in row]
        for name in ("straight", "mixed")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert runs[0].test.rsum == pytest.approx(runs[1].test.rsum, abs=1)
