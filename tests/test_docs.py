"""Pages that are written from the program say what the program says, and their links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

from selhn.diagnose import read_foreign
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


def test_the_probe_of_the_page_writes_what_can_be_diagnosed(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "diagnose.md").read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    log = read_foreign("probe.jsonl")
    assert log.steps.tolist() == [1, 11, 21]
    table = re.findall(r"^\| (`.*?) \|", (DOCS / "diagnose.md").read_text(), flags=re.MULTILINE)
    named = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert {name for name in log.columns if not name.startswith(("grad_", "loss"))} - named == {
        "rank_texts",
        "spread_texts",
    }


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
