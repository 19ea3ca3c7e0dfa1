"""Writes the table and the references of docs/losses.md, between its two marks, from `LOSSES`.

python docs/losses.py
"""

import inspect
import re
from pathlib import Path

from selhn.kernels.hopper.sides import PARAMETERS
from selhn.losses import LOSSES, AbstractLoss, LossEntry
from selhn.losses.statistics import only_maxima

PAGE = Path(__file__).with_suffix(".md")
MARKS = ("<!-- from here on written by docs/losses.py -->", "<!-- up to here -->")
HEADER = ("name", "class", "loss of an anchor", "backward", "on a GPU", "level", "paper")


def needs_of(loss: type[AbstractLoss]) -> tuple[set[str], set[str]]:
    """The statistics that a loss takes, and those that it takes while it warms up, where it can."""
    made = loss()
    before = set(made.needs) if made.warming_up else set()
    made.set_epoch(10**6)
    return set(made.needs), before


def way_back(needs: set[str]) -> str:
    """What the backward pass costs from embeddings: see the page."""
    maxima = {name for name in needs if only_maxima((name,))}
    return "few" if maxima == needs else "some" if maxima else "all"


def row(name: str, entry: LossEntry) -> list[str]:
    """A line of the table."""
    needs, warming = needs_of(entry.loss)
    cost = way_back(needs)
    if warming and way_back(warming) != cost:
        cost += f", {way_back(warming)} while warming up"
    fused = (needs | warming) - {"positive_mean"} <= PARAMETERS.keys()
    equation = entry.equation.replace("|", "\\|")
    return [f"`{name}`", f"`{entry.loss.__name__}`", f"`{equation}`", cost, "Triton" if fused else "torch",
            "" if entry.shift_invariant else "matters", entry.paper]  # fmt: skip


def references(loss: type[AbstractLoss]) -> str:
    """What the docstring of a loss refers to, in one line."""
    found = re.search(r"References:\n(.*?)\n\n", inspect.getdoc(loss) or "", flags=re.DOTALL)
    return " ".join(found.group(1).split()) if found else ""


def generated() -> str:
    """The table and the references."""
    rows = [row(name, entry) for name, entry in LOSSES.items()]
    lines = [" | ".join(cells) for cells in (HEADER, ["---"] * len(HEADER), *rows)]
    sources = [f"- `{name}`: {references(entry.loss)}" for name, entry in LOSSES.items()]
    return "\n".join([*(f"| {line} |" for line in lines), "", "## References", "", *sources])


def page(text: str) -> str:
    """The page, with the part between its marks written again."""
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    return f"{before}{MARKS[0]}\n\n{generated()}\n\n{MARKS[1]}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(f"written: {PAGE}")
