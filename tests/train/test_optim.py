import pytest
import torch

from selhn.train.config import TrainConfig
from selhn.train.optim import make_optimizer, set_learning_rate


def test_step_decay_is_a_function_of_the_epoch(tiny_model):
    config = TrainConfig(lr=1e-3, decay_at=(2, 4))
    optimizer = make_optimizer(tiny_model(), config, torch.device("cpu"))
    rates = []
    for epoch in (0, 1, 2, 3, 4, 5, 1):
        set_learning_rate(optimizer, epoch, config)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5, 1e-3])


def test_every_trainable_weight_is_in_one_group(tiny_model):
    model = tiny_model()
    optimizer = make_optimizer(model, TrainConfig(), torch.device("cpu"))
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert all(group["weight_decay"] == 0.01 for group in optimizer.param_groups)
