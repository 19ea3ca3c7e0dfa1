"""Pages that are written from the program say what the program says, and their links lead somewhere."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from selhn.losses import LOSSES

DOCS = Path(__file__).parents[1] / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_losses_is_up_to_date():
    text = (DOCS / "losses.md").read_text()
    assert load("losses").page(text) == text, "run python docs/losses.py"


def test_every_loss_is_in_the_table_with_its_references():
    generated = load("losses").generated()
    for name in LOSSES:
        assert generated.count(f"| `{name}` |") == 1
        assert re.search(rf"^- `{name}`: \S.{{20,}}\d{{4}}", generated, flags=re.MULTILINE), f"{name} refers to nothing"


def test_the_way_back_of_a_loss():
    losses = load("losses")
    cells = {name: losses.row(name, LOSSES[name])[3] for name in ("hn", "triplet", "selhn", "infonce", "warmup")}
    assert cells == {
        "hn": "few",
        "triplet": "all",
        "selhn": "some",
        "infonce": "all",
        "warmup": "few, all while warming up",
    }


def test_the_chooser_names_losses_that_exist():
    chooser = (DOCS / "losses.md").read_text().split("## All of them")[0]
    rows = [line.split(" | ") for line in chooser.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) > 10
    named = set(re.findall(r"`(\w+)`", " ".join(" ".join(row) for row in rows))) - {"image_ids", "epsilon"}
    assert named <= set(LOSSES)


def test_the_page_on_search_does_what_it_says(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "search.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    code = "\n".join(["import torch", "torch.set_num_threads(1)", *blocks])
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            assert there.exists(), f"{target} is not there"
            assert not anchor or anchor in anchors(there), f"{target} has no such heading"
