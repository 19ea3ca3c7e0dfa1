import math
import threading

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.tensor_files import NothingDrawn, built_with, check_fits, read_tensors

WANTED = {"weight": torch.zeros(2, 3), "count": torch.zeros((), dtype=torch.int64)}


def stack_of(number):
    return lambda: nn.Sequential(*(nn.Linear(2, 2) for _ in range(number)))


class Odd(nn.Module):
    """With a weight under two names, a tensor that is no weight, and a buffer that is not stored."""

    def __init__(self, tied=False, attribute=False, buffer=False):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = self.first if tied else nn.Linear(2, 2)
        self.scale = torch.tensor(3.0) if attribute else 3.0
        self.register_buffer("shift", torch.tensor(4.0) if buffer else None, persistent=False)

    def forward(self, x):
        return self.second(self.first(x)) * self.scale + (0 if self.shift is None else self.shift)


@pytest.mark.parametrize(
    ("odd", "builds"), [({}, 1), ({"tied": True}, 2), ({"attribute": True}, 2), ({"buffer": True}, 2)]
)
def test_a_module_that_fits_is_built_once_unless_it_has_more_than_weights(odd, builds):
    wanted, built = Odd(**odd), []
    wanted.first.weight.requires_grad_(False)

    def build():
        built.append(Odd(**odd))
        built[-1].first.weight.requires_grad_(False)
        return built[-1]

    state = torch.get_rng_state()
    weights = {name: weight.double() for name, weight in wanted.state_dict().items()}
    module = built_with(build, weights, "here")
    assert len(built) == builds
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(module(torch.ones(1, 2)), wanted(torch.ones(1, 2)))
    assert (module.second is module.first) is bool(odd.get("tied"))
    assert not module.first.weight.requires_grad
    assert module.first.bias.requires_grad
    assert not any(weight.is_meta for weight in module.state_dict().values())
    weights["first.weight"].zero_()
    assert module.first.weight.any(), "a copy"


def test_a_module_far_larger_than_its_weights_is_never_finished():
    built = []

    def build():
        return nn.Sequential(*(built.append(1) or nn.Linear(2, 2) for _ in range(10**7)))

    with pytest.raises(Damaged):
        built_with(build, stack_of(3)().state_dict(), "here")
    assert len(built) < 2000


def test_modules_without_weights_count():
    def build():
        model = nn.Module()
        for i in range(10**7):
            model.add_module(str(i), nn.Identity())
        return model

    with pytest.raises(Damaged):
        built_with(build, {}, "here")


def test_it_takes_no_memory():
    with pytest.raises(SelhnError):
        built_with(lambda: nn.Linear(10**6, 10**6), nn.Linear(2, 2).state_dict(), "here")


def test_others_may_build_meanwhile():
    sizes = []

    def build():
        other = threading.Thread(target=lambda: sizes.append(len(stack_of(2000)())))
        other.start()
        other.join()
        return stack_of(3)()

    built_with(build, stack_of(3)().state_dict(), "here")
    assert sizes == [2000]
    assert len(stack_of(2000)()) == 2000, "and afterwards nothing counts"


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"other": torch.zeros(1)}, SelhnError, "unexpected"),
        ({"weight": torch.zeros(3, 2)}, SelhnError, "shapes"),
        ({"weight": torch.zeros(2, 3, dtype=torch.complex64)}, SelhnError, "complex64"),
        ({"weight": torch.zeros(2, 3, dtype=torch.int8)}, SelhnError, "int8"),
        ({"count": torch.tensor(1.5)}, SelhnError, "float32"),
        *[
            ({"weight": torch.full((2, 3), value, dtype=torch.float64)}, Damaged, "not finite")
            for value in (math.nan, -math.inf, 1e300, -3e38)
        ],
    ],
)
def test_weights_that_are_refused(change, kind, message):
    with pytest.raises(kind, match=message):
        check_fits(WANTED, {**WANTED, **change}, "here")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_another_precision_fit(kind):
    check_fits(WANTED, {**WANTED, "weight": torch.ones(2, 3, dtype=kind)}, "here")


def test_files(tmp_path):
    with pytest.raises(NotFound):
        read_tensors(tmp_path)
    (tmp_path / "a").write_bytes(b"noise" * 9)
    with pytest.raises(Damaged):
        read_tensors(tmp_path / "a")
    save_file(WANTED, tmp_path / "a")
    assert read_tensors(tmp_path / "a").keys() == WANTED.keys()


def test_what_is_not_drawn_is_no_endless_draw():
    """Vision models of transformers and timm draw again what is outside of a range."""
    weight = nn.Parameter(torch.full((4,), 99.0))
    with NothingDrawn():
        nn.init.trunc_normal_(weight)
    assert not weight.any()
