"""Logs and results as training writes them, without training; and short runs."""

import re
from contextlib import contextmanager

import pytest

from selhn.data.world import world_features


@contextmanager
def few_held_out():
    """Dev and test of generated worlds have 20 images: evaluation would take most of the time of short runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world_features, "LEAST_HELD_OUT", 20)
        yield


def recalls(level):
    return {"R@1": level, "R@5": level + 20.0, "R@10": level + 40.0, "median_rank": 3.0, "mean_rank": 5.0,
            "num_queries": 100}  # fmt: skip


def metrics(level):
    both = recalls(level)
    return {"i2t": both, "t2i": both, "rsum": 6 * level + 120}


def rows(steps=40, level=10.0):
    """A log as training writes it, with an evaluation every ten steps."""
    for step in range(1, steps + 1):
        numbers = {"loss": 0.3 - 0.002 * step, "loss_per_anchor": 0.3 - 0.002 * step, "delta_s": 0.001 * step,
                   "separated": step / steps, "spread": 0.1, "grad_image": 1 / step, "grad_text": 2 / step}  # fmt: skip
        yield {"step": step, "epoch": (step - 1) // 10, **numbers}
        if step % 10 == 0:
            yield {"step": step, "epoch": (step - 1) // 10, "dev": metrics(level + step / 10)}


def section(html, name):
    """What is in one section of a report, under its title."""
    return re.search(rf'<section id="{name}"><h2>.*?</h2>(.*?)</section>', html, flags=re.DOTALL).group(1)
