"""The numbers of a log as a person would quote them: at first and at the end."""

import math

import numpy as np

from selhn.diagnose.logs import Column, Log


def told_numbers(log: Log) -> tuple[str, ...]:
    """How the other numbers that the log has changed."""
    words = {"spread": "spread of the scores", "rank_images": "effective rank of the images",
             "rank_texts": "effective rank of the texts", "distance": "|t^ - t|"}  # fmt: skip
    there = {**log.evaluated, **log.columns}
    told = [from_to(words[name], *ends(there[name])) for name in words if name in there]
    if len(log.dev) > 1:
        told.append(from_to("RSUM on dev", log.dev[0][1], log.dev[-1][1]))
    return (*told, *told_gradients(log))


def told_gradients(log: Log) -> tuple[str, ...]:
    """The gradient norm that changed most."""
    norms = {name: ends(column) for name, column in log.columns.items() if name.startswith("grad_")}
    norms = {name: (first, last) for name, (first, last) in norms.items() if first > 0 and last > 0}
    if not norms:
        return ()
    name = max(norms, key=lambda one: abs(math.log(norms[one][1] / norms[one][0])))
    return (from_to(f"gradient norm of {name.removeprefix('grad_')}", *norms[name]),)


def from_to(name: str, first: float, last: float) -> str:
    """One number, as it was and as it is."""
    return f"{name}: from {first:.4g} to {last:.4g}"


def ends(column: Column) -> tuple[float, float]:
    """Means over the first and the last tenth of what there is."""
    there = column[np.isfinite(column)]
    size = max(1, len(there) // 10)
    return (float(there[:size].mean()), float(there[-size:].mean())) if len(there) else (float("nan"),) * 2


def smoothed(column: Column) -> Column:
    """The mean over the last twentieth of the log, at every row."""
    size = max(1, len(column) // 20)
    return np.convolve(np.pad(column, (size - 1, 0), mode="edge"), np.ones(size) / size, mode="valid")
