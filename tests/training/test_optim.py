import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from model_cases import make_model

from selhn.base.errors import Damaged, SelhnError
from selhn.losses import TripletHN
from selhn.training.config import TrainConfig
from selhn.training.optim import (
    AdamW,
    make_optimizer,
    parameter_groups,
    rate_factor,
    set_learning_rate,
)
from selhn.training.protocols import Protocol
from selhn.training.step import make_batches, training_step


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_a_step_is_that_of_plain_torch(tiny_model, tiny_data, device, clip):
    """Two groups, one weight without a gradient, gradients clipped by torch before its own update."""
    config, on, ends = TrainConfig(batch_size=16, precision="float32", clip=clip), torch.device(device), []
    for own in (False, True):
        model = tiny_model().double().to(on).train()
        model.unused = torch.nn.Parameter(torch.ones(3, dtype=torch.float64, device=on))
        weights = list(model.parameters())
        groups = [{"params": weights[:2], "lr": 1e-3}, {"params": weights[2:], "weight_decay": 0.1}]
        optimizer = AdamW(groups, 1e-2, 0.01, on) if own else torch.optim.AdamW(groups, 1e-2)
        batches = make_batches(model, tiny_data, config, on)
        batches.dtype = torch.float64
        protocol = Protocol(model, TripletHN(reduction="sum"), tiny_data, batches, config)
        for step, _ in zip(batches.steps(0), range(3)):
            if own:
                batches.generator.manual_seed(step.seed)
                training_step(protocol, optimizer, step.pairs, step.num_tokens)
                continue
            batch = batches.assemble(step)
            optimizer.zero_grad()
            protocol.loss(model(batch).scores, image_ids=batch.image_ids).backward()
            if clip:
                assert torch.nn.utils.clip_grad_norm_(weights, clip) > clip
            optimizer.step()
        ends.append(torch.cat([weight.detach().flatten() for weight in weights]))
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-8)


def test_training_does_not_import_torchs_compiler():
    """It takes as long as importing torch; creating an optimiser of torch would import it."""
    program = """
import sys
from selhn.training.run import run_config
from selhn.training.config import RunConfig, override
small = ["data.images=100", "epochs=1", "batch_size=64", "model.dim=16", "device=cpu"]
run_config(override(RunConfig(), small), quiet=True)
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


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


def test_a_model_with_nothing_to_train():
    with pytest.raises(SelhnError):
        make_optimizer(make_model("rvse").requires_grad_(False), TrainConfig(), torch.device("cpu"))


def test_a_weight_with_gaps_in_memory_is_refused():
    """The fused update would change what is in the gaps, and not the last rows."""
    weight = torch.nn.Parameter(torch.zeros(4, 6)[:, :3])
    with pytest.raises(SelhnError):
        AdamW([{"params": [weight]}], 0.1, 0.0, torch.device("cpu"))


def test_moments_of_other_weights_are_refused(tiny_model):
    small, large = (
        make_optimizer(tiny_model(name), TrainConfig(), torch.device("cpu")) for name in ("vse_fc", "rvse")
    )
    for optimizer in (small, large):
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.zeros_like(weight)
        optimizer.step()
    for ours, theirs in ((small, large), (large, small)):
        with pytest.raises(Damaged):
            ours.load_state_dict(theirs.state_dict())
