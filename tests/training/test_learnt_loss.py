from dataclasses import replace

import pytest
import torch

from selhn.losses import NCR, InfoNCE, MultiPositiveSigLIP, SigLIP, TripletHN, create_loss, loss_settings
from selhn.runs import read_log
from selhn.training import RunConfig, get_recipe, override, train


@pytest.fixture
def config(tiny_config):
    return replace(tiny_config, epochs=2, lr=5e-3)


def values(loss):
    return [float(parameter.detach()) for parameter in loss.learnt()]


def test_the_temperature_is_trained_and_in_the_log(tiny_data, tiny_model, config, tmp_path):
    loss = SigLIP(learn=True)
    before = values(loss)
    train(tiny_model(), tiny_data, loss, out=tmp_path / "run", config=config, quiet=True)
    assert all(now != then for now, then in zip(values(loss), before, strict=True))
    logged = [row["temperature"] for row in read_log(tmp_path / "run/log.jsonl") if "temperature" in row]
    assert logged[0] == pytest.approx(0.1)
    assert len(set(logged)) > 1


class Foreign(torch.nn.Module):
    """A loss of another program, with a parameter, a buffer, and a hold on the model."""

    def __init__(self, model):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.register_buffer("calls", torch.zeros(()))
        self.model = model

    def forward(self, scores):
        self.calls += 1
        return torch.nn.functional.cross_entropy(scores * self.scale, torch.arange(len(scores)))


def test_a_module_from_outside_is_trained_and_resumed(tiny_data, tiny_model, config, tmp_path):
    def run(out, epochs, resume=False):
        model = tiny_model()
        loss = Foreign(model)
        config_of_run = replace(config, epochs=epochs)
        train(model, tiny_data, loss, out=tmp_path / out, config=config_of_run, resume=resume, quiet=True)
        return float(loss.scale.detach()), int(loss.calls)

    whole = run("whole", 2)
    first = run("part", 1)
    assert whole[0] != 2.0
    assert run("part", 2, resume=True) == whole != first


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        (["loss=siglip"], SigLIP()),
        (["loss=siglip", "loss.learn=false"], SigLIP(learn=False)),
        (["loss=siglip_multi"], MultiPositiveSigLIP()),
        (["loss=infonce"], InfoNCE()),
        (["loss=infonce", "loss.learn=true"], InfoNCE(learn=True)),
        (["loss=ncr"], NCR()),
        (["loss=ncr", "loss.warmup_epochs=0"], NCR(warmup_epochs=0)),
    ],
)
def test_a_loss_of_a_run_is_the_loss_of_that_name(settings, made):
    config = override(get_recipe("rvse_selhn_world"), settings)
    of_run = create_loss(config.loss, **config.loss_settings)
    assert (type(of_run), loss_settings(of_run)) == (type(made), loss_settings(made))
    assert len(of_run.learnt()) == len(made.learnt())


@pytest.mark.parametrize(
    ("written", "learnt"),
    [
        ({}, 2),  # selhn train loss=siglip
        ({"temperature": 0.1, "bias": -10.0, "learn": False, "reduction": "mean"}, 0),  # train(..., SigLIP())
    ],
)
def test_a_config_of_0_2_0_has_the_loss_it_was_trained_with(written, learnt):
    config = get_recipe("rvse_selhn_world").to_dict()
    config = RunConfig.from_dict({**config, "loss": "siglip", "loss_settings": written})
    assert len(create_loss(config.loss, **config.loss_settings).learnt()) == learnt


def test_siglips_bias_is_in_the_log(tiny_data, tiny_model, config, tmp_path):
    train(tiny_model(), tiny_data, SigLIP(learn=True), out=tmp_path / "run", config=config, quiet=True)
    logged = [row["bias"] for row in read_log(tmp_path / "run/log.jsonl") if "bias" in row]
    assert logged[0] == pytest.approx(-10.0)
    assert len(set(logged)) > 1
    assert "bias" not in InfoNCE(learn=True).numbers()


class Counting(TripletHN):
    """A loss that tells the log something and learns nothing."""

    def numbers(self):
        return {"half": torch.tensor(0.5), "quarter": 0.25}


def test_the_numbers_of_a_loss_that_learns_nothing_are_in_the_log(tiny_data, tiny_model, config, tmp_path):
    train(tiny_model(), tiny_data, Counting(), out=tmp_path / "run", config=config, quiet=True)
    rows = [row for row in read_log(tmp_path / "run/log.jsonl") if "loss" in row]
    assert rows
    assert all((row["half"], row["quarter"]) == (0.5, 0.25) for row in rows)
