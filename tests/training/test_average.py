"""The average of the weights (`ema`): its formula, what is averaged, and that it is what a run keeps."""

import shutil

import pytest
import torch
from model_cases import CASES, make_batch, make_model

from selhn.base.errors import Damaged, SelhnError
from selhn.eval import evaluate
from selhn.losses import InfoNCE, TripletSelHN
from selhn.models import Twins, load_model
from selhn.runs import read_log
from selhn.training import train
from selhn.training.average import EVERY_STEP_UNTIL, LATER_EVERY, WeightAverage


def moved(model, seed):
    """Every trained weight and running statistic somewhere else, as after a step."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0)
            elif buffer.ndim == 0:  # a counter
                buffer.add_(1)
    return {name: tensor.double() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", CASES)
def test_the_formula_for_every_model(name):
    model = make_model(name)
    average = WeightAverage(model, 0.5)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    expected = {name: tensor.double() for name, tensor in model.state_dict().items()}
    for step in range(1, 13):
        seen = moved(model, step)
        average.update(step)
        decay = min(0.5, step / (9 + step))
        expected = {name: decay * expected[name] + (1 - decay) * seen[name] for name in seen}
    state = average.current().state_dict()
    for name, tensor in state.items():
        if name in trained or tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(tensor.double(), seen[name]), f"{name} is as the model has it now"
    before = {name: tensor.clone() for name, tensor in average.state_dict().items()}
    for step in range(LATER_EVERY + 1, LATER_EVERY * 2):
        average.update(EVERY_STEP_UNTIL + step)
    assert all(torch.equal(tensor, before[name]) for name, tensor in average.state_dict().items()), (
        "later, not every step"
    )
    seen = moved(model, 0)
    average.update(EVERY_STEP_UNTIL + 2 * LATER_EVERY)
    for name, tensor in average.state_dict().items():
        expected = seen[name] + 0.5**LATER_EVERY * (before[name].double() - seen[name])
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-6)
    assert set(average.state_dict()) >= trained
    batch = make_batch(regions=5)
    assert torch.isfinite(average.model(batch).scores).all()
    assert not average.model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_the_last_of_the_first_steps_counts_once():
    model = make_model("vse_fc")
    average = WeightAverage(model, 0.5)
    for step in range(1, EVERY_STEP_UNTIL + 1):
        for weight in model.parameters():
            torch.nn.init.constant_(weight, float(step < EVERY_STEP_UNTIL))
        average.update(step)
    for weight in average.model.parameters():
        torch.testing.assert_close(weight, torch.full_like(weight, 0.5))


def test_frozen_weights_and_the_tokenizer_are_shared_and_not_averaged():
    model = make_model("rvsepp", freeze_bert=True)
    average = WeightAverage(model, 0.9)
    for copied, frozen in zip(
        average.model.text.words.parameters(), model.text.words.parameters(), strict=True
    ):
        assert copied is frozen
    assert not any("bert" in name for name in average.state_dict())
    assert average.model.tokenizer is model.tokenizer


def test_infinite_buffers_have_no_average():
    model = make_model("vse_fc")
    model.register_buffer("hidden", torch.tensor([0.0, -torch.inf]))
    average = WeightAverage(model, 0.9)
    average.update(1)
    assert torch.equal(average.current().hidden, model.hidden)


@pytest.mark.parametrize("decay", [1.0, -0.1, 1.5])
def test_a_decay_that_is_none(decay):
    with pytest.raises(SelhnError):
        WeightAverage(make_model("vse_fc"), decay)


def test_averages_that_do_not_fit():
    average = WeightAverage(make_model("vse_fc"), 0.9)
    state = average.state_dict()
    whole = {name: tensor.int() for name, tensor in state.items()}
    for wrong in ({}, whole, {**state, "more": torch.ones(1)}, {name: torch.ones(3) for name in state}):
        with pytest.raises(SelhnError):
            average.load_state_dict(wrong)
    with pytest.raises(Damaged, match="finite"):
        average.load_state_dict({name: tensor * torch.nan for name, tensor in state.items()})


def test_the_average_is_what_a_run_evaluates_and_keeps(tmp_path, tiny_model, tiny_data, tiny_config):
    models = {ema: tiny_model() for ema in (None, 0.9)}
    runs = {
        ema: train(
            model, tiny_data, TripletSelHN(), out=tmp_path / str(ema), config=tiny_config, ema=ema, quiet=True
        )
        for ema, model in models.items()
    }
    logs = {ema: read_log(tmp_path / str(ema) / "log.jsonl") for ema in models}
    steps = {ema: [row for row in rows if "loss" in row] for ema, rows in logs.items()}
    assert steps[None] == steps[0.9], "the average changes nothing in the training"
    dev = {ema: [row["dev"] for row in rows if "dev" in row] for ema, rows in logs.items()}
    assert dev[None] != dev[0.9]
    assert runs[0.9].dev.rsum == max(row["rsum"] for row in dev[0.9])
    again = load_model(tmp_path / "0.9")
    assert evaluate(again, tiny_data.test) == runs[0.9].test == evaluate(models[0.9], tiny_data.test)
    assert "ema: 0.9" in (tmp_path / "0.9" / "config.yaml").read_text()
    with pytest.raises(SelhnError, match="ema"):
        train(
            tiny_model(),
            tiny_data,
            TripletSelHN(),
            out=tmp_path / "None",
            config=tiny_config,
            ema=0.9,
            resume=True,
        )
    best = (tmp_path / "0.9" / "best" / "checksums.json").read_bytes()
    shutil.rmtree(tmp_path / "0.9" / "best")
    train(
        tiny_model(),
        tiny_data,
        TripletSelHN(),
        out=tmp_path / "0.9",
        config=tiny_config,
        ema=0.9,
        resume=True,
    )
    assert (tmp_path / "0.9" / "best" / "checksums.json").read_bytes() == best, "written again, averaged"


def test_without_a_folder_and_with_two_networks_and_a_learnt_scale(tiny_model, tiny_data, tiny_config):
    model, loss = tiny_model(networks=2), InfoNCE(learn=True)
    run = train(model, tiny_data, loss, config=tiny_config, ema=0.9, epochs=1, quiet=True)
    assert isinstance(model, Twins)
    assert evaluate(model, tiny_data.dev) == run.dev
    assert all(parameter.requires_grad for parameter in loss.learnt())
