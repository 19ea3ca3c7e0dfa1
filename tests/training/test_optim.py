import math
from dataclasses import replace

import pytest
import torch
from model_cases import make_model

from selhn.diagnose import parameter_norms, total_norm
from selhn.training.config import TrainConfig
from selhn.training.optim import (
    clipped_step,
    make_optimizer,
    parameter_groups,
    rate_factor,
    set_learning_rate,
)


def test_step_decay_is_a_function_of_the_step(tiny_model):
    config = TrainConfig(lr=1e-3, decay_at=(2, 4))
    optimizer = make_optimizer(tiny_model(), config, torch.device("cpu"))
    rates = []
    for epoch in (0, 1, 2, 3, 4, 5, 1):
        factors = {rate_factor(config, step, 7) for step in range(7 * epoch, 7 * epoch + 7)}
        assert len(factors) == 1, "all steps of an epoch have one rate"
        set_learning_rate(optimizer, factors.pop())
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1e-3, 1e-3, 1e-3 * 0.1, 1e-3 * 0.1, 1e-3 * 0.1**2, 1e-3 * 0.1**2, 1e-3]


@pytest.mark.parametrize("schedule", ["step", "constant", "cosine"])
def test_every_schedule_rises_first(schedule):
    config = TrainConfig(epochs=4, schedule=schedule, decay_at=(3,), lr_warmup=0.5)
    factors = [rate_factor(config, step, 10) for step in range(40)]
    assert factors[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1])
    after = {
        "step": [1.0] * 25 + [0.1] * 10,
        "constant": [1.0] * 35,
        "cosine": [0.5 + 0.5 * math.cos(math.pi * step / 35) for step in range(35)],
    }
    assert factors[5:] == pytest.approx(after[schedule])
    plain = [rate_factor(replace(config, lr_warmup=0.0), step, 10) for step in range(40)]
    assert plain[0] == 1
    assert plain[-1] == pytest.approx({"step": 0.1, "constant": 1, "cosine": 0.00154}[schedule], rel=1e-2)


def test_every_trainable_weight_is_in_one_group(tiny_model):
    model = tiny_model()
    optimizer = make_optimizer(model, TrainConfig(), torch.device("cpu"))
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert all(group["weight_decay"] == 0.01 for group in optimizer.param_groups)


def test_clipping_is_torchs_own(tiny_model):
    norms, weights = [], []
    for clip in (None, 0.5):
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for index, parameter in enumerate(p for p in model.parameters() if p.requires_grad):
            parameter.grad = torch.full_like(parameter, 0.01 * (index + 1))
        if clip is None:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
        else:
            before = parameter_norms(model.parameters())
            norms.append(total_norm(list(before.values())))
            clipped_step(optimizer, before, clip)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*norms)
    assert norms[0] > 0.5
    assert torch.allclose(*weights, atol=1e-7)


@pytest.mark.gpu
def test_the_fused_update_clips_too(tiny_model):
    weights = []
    for on_gpu in (False, True):
        device = torch.device("cuda" if on_gpu else "cpu")
        model = tiny_model().to(device)
        optimizer = make_optimizer(model, TrainConfig(lr=1e-2), device)
        for _ in range(3):
            for index, parameter in enumerate(p for p in model.parameters() if p.requires_grad):
                parameter.grad = torch.full_like(parameter, 0.01 * (index + 1))
            clipped_step(optimizer, parameter_norms(model.parameters()), 0.5)
        weights.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    assert torch.allclose(*weights, atol=1e-5)


def test_pretrained_weights_learn_more_slowly():
    model = make_model("rvsepp")
    own, bert = parameter_groups(model, 1.0, text_lr_factor=0.25)
    assert (own["lr"], bert["lr"]) == (1.0, 0.25)
    names = {id(p): key for key, p in model.named_parameters()}
    assert all(names[id(p)].startswith("text.words.bert.") for p in bert["params"])
    grouped = sorted(names[id(p)] for p in own["params"] + bert["params"])
    assert grouped == sorted(key for key, p in model.named_parameters() if p.requires_grad)
    assert [group["lr"] for group in parameter_groups(make_model("rvse"), 0.5)] == [0.5]


def test_frozen_weights_are_in_no_group():
    model = make_model("rvsepp", freeze_bert=True).train()
    assert len(parameter_groups(model, 1.0)) == 1
    assert not model.text.words.training
    assert model.text.training
