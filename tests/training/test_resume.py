"""A run that died ends as if nothing had happened: bit for bit, for every kind of state that a run can have."""

import pytest
import torch

from selhn.training import get_recipe, override, resume_run, run_config
from selhn.training import step as steps

TINY = [
    "data.images=16",
    "batch_size=12",
    "epochs=3",
    "model.dim=16",
    "model.word_dim=8",
    "device=cpu",
    "noise=0.2",
]
SYSTEMS = {
    "selhn": ["ema=0.9"],
    "ncr": ["loss.warmup_epochs=1", "ema=0.9"],
    "aoq": ["loss.depth=30", "ema=0.9"],
    "meta_spn": [],
    "siglip": ["loss.learn=true", "schedule=cosine", "lr_warmup=0.5"],
    "infonce": ["loss.learn=true", "ema=0.9", "distil=1"],
}


def final_state(out):
    return torch.load(max((out / "checkpoints").iterdir()), weights_only=True)


def plain(value):
    """Something to compare, whatever is nested in it."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_run_that_died_ends_as_if_nothing_had_happened(name, tmp_path, monkeypatch):
    settings = [f"loss={name}", "checkpoint_every=4", *TINY, *SYSTEMS[name]]
    config = override(get_recipe("rvse_selhn_world"), settings)
    whole = run_config(config, tmp_path / "whole", quiet=True)
    step, count = steps.training_step, [0]

    def mortal(*args):
        count[0] += 1
        if count[0] == 11:  # in the middle of the second epoch, three steps after a checkpoint
            raise MemoryError("killed")
        return step(*args)

    monkeypatch.setattr(steps, "training_step", mortal)
    with pytest.raises(MemoryError, match="killed"):
        run_config(config, tmp_path / "died", quiet=True)
    died = final_state(tmp_path / "died")
    assert died["position"]["step"] == 8
    assert bool(died["protocol"]) == (name in ("ncr", "aoq", "meta_spn"))
    assert bool(died["loss"]) == (name in ("meta_spn", "siglip", "infonce"))
    assert ("average" in died) == any(setting.startswith("ema") for setting in settings)
    monkeypatch.setattr(steps, "training_step", step)
    again = resume_run(tmp_path / "died", quiet=True)
    assert again.test == whole.test
    best = [(tmp_path / out / "best" / "checksums.json").read_bytes() for out in ("whole", "died")]
    assert best[0] == best[1]
    assert plain(final_state(tmp_path / "died")) == plain(final_state(tmp_path / "whole"))
    assert (tmp_path / "died" / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()
