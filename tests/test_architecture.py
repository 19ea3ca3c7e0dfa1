"""The lines DESIGN draws: imports go one way, and nothing grows out of sight."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "selhn"
FILES = sorted(PACKAGE.rglob("*.py"))
# A room may use the rooms before it; rooms in one set do not know each other.
FLOORS = [
    {"types", "names", "progress", "examples", "sheet", "lock", "device"},
    {"kernels", "text"},
    {"layers"},
    {"models", "losses", "data"},
    {"features"},
    {"ready"},
    {"eval"},
    {"diagnose"},
    {"train", "retrieve"},
    {"photos", "export"},
    {"searching"},
    {"reproduce", "report", "official", "demo", "show", "exporting"},
    {"serve", "importing"},
    {"cli"},
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path):
    """Rooms of selhn that a file names anywhere, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the full name of what is imported"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("selhn."))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    here = room(path)
    if here in ("__init__", "__main__"):
        return
    assert here in FLOOR, f"{here} has no floor yet: place it in FLOORS"
    for there in imported_rooms(path):
        assert there == here or FLOOR[there] < FLOOR[here], f"{path} imports selhn.{there}, which is not below {here}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_one_noun_a_file(path):
    text = path.read_text()
    assert text.count("\n") <= 350, "a file past 350 lines has two nouns in it"
    assert "from __future__ import annotations" not in text, "jaxtyping checks annotations as objects"


def test_every_source_file_has_its_tests():
    tests = PACKAGE.parents[1] / "tests"
    for path in FILES:
        relative = path.relative_to(PACKAGE)
        if relative.name in ("__init__.py", "types.py"):
            continue
        if relative == Path("losses/base.py"):  # what all losses share is tested over the table of losses
            relative = Path("losses/table.py")
        name = relative.name.replace("_triton.py", ".py")  # kernels are tested by the functions that launch them
        assert (tests / relative.parent / f"test_{name}").exists(), f"no tests for {relative}"
