"""What holds for every protocol: runs from names; how they are resumed is in `training/test_resume.py`."""

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.losses import LOSSES, TripletHN, TripletSelHN
from selhn.models import Twins, load_model
from selhn.runs import read_log
from selhn.training import get_recipe, override, run_config
from selhn.training.protocols import PROTOCOLS, Protocol, protocol_of

NAMES = [name for name, entry in LOSSES.items() if entry.loss in PROTOCOLS]
TINY = ["data.images=40", "epochs=3", "batch_size=32", "model.dim=16", "device=cpu", "noise=0.2"]
SETTINGS = {"ncr": ["loss.warmup_epochs=1"], "aoq": ["loss.depth=30"], "meta_spn": []}


def tiny_run(recipe, name):
    return override(get_recipe(recipe), [f"loss={name}", *TINY, *SETTINGS.get(name, [])])


def test_every_protocol_is_that_of_a_loss_of_the_table():
    assert set(NAMES) == {"ncr", "aoq", "meta_spn"}
    assert {LOSSES[name].loss for name in NAMES} == set(PROTOCOLS)


def test_other_losses_are_trained_the_ordinary_way():
    for loss in (TripletSelHN(), TripletHN(), torch.mean):
        assert protocol_of(type(loss)) is Protocol


SMALL = ["epochs=2", "data.images=8", "batch_size=8", "model.sim_dim=8"]


@pytest.mark.parametrize(
    ("recipe", "name", "settings"),
    [
        ("bfan_equal_hn_world", "ncr", ["epochs=2", "data.images=20"]),
        # Three ways to score pairs by themselves: by vectors, by attention, and where the batch decides.
        ("vse_fc_hn_world", "aoq", []),
        ("sgr_selhn_world", "aoq", SMALL),
        ("saf_hn_world", "aoq", SMALL),
        ("saf_hn_world", "meta_spn", SMALL),
    ],
)
def test_a_run_from_names(recipe, name, settings, tmp_path):
    config = override(tiny_run(recipe, name), settings)
    run = run_config(config, tmp_path / "run", quiet=True)
    rows = [row for row in read_log(tmp_path / "run" / "log.jsonl") if "loss" in row]
    pairs = 5 * config.data_settings["images"]
    assert len(rows) == config.train.epochs * (pairs // config.train.batch_size)
    assert all(row["loss"] > 0 and row["grad_image"] > 0 for row in rows)
    assert run.test.rsum > 0
    model = load_model(tmp_path / "run" / "best")
    assert isinstance(model, Twins) == (name == "ncr")
    assert "noise" in (tmp_path / "run" / "identity.json").read_text()


def test_two_passes_are_the_same_run_with_labels(tmp_path):
    config = override(
        tiny_run("bfan_equal_hn_world", "ncr"), ["model.networks=1", "epochs=2", "data.images=20", "ema=0.9"]
    )
    losses = []
    for two_pass in ("false", "true"):
        run_config(override(config, [f"two_pass={two_pass}"]), tmp_path / two_pass, quiet=True)
        rows = read_log(tmp_path / two_pass / "log.jsonl")
        losses.append([row["loss"] for row in rows if "loss" in row])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert not isinstance(load_model(tmp_path / "true"), Twins), "one network divides the pairs for itself"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("aoq", ["two_pass=true"], "more pairs"),
        ("ncr", ["two_pass=true", "model.networks=1", "loss.margin_of=image"], "moves"),
        ("ncr", ["two_pass=true"], "two_pass"),
        ("aoq", ["model.networks=2"], "one network"),
        ("ncr", ["model.networks=3"], "networks"),
        ("hn", ["noise=1.5"], "noise"),
    ],
)
def test_what_does_not_go_together(name, settings, message):
    config = override(
        get_recipe("bfan_equal_hn_world"), [f"loss={name}", *TINY, *SETTINGS.get(name, []), *settings]
    )
    with pytest.raises(SelhnError, match=message):
        run_config(config, quiet=True)
