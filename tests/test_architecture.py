"""The house: which rooms there are, on which floor each stands, and that nothing grows out of sight."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "selhn"
FILES = sorted(PACKAGE.rglob("*.py"))
# A room may use the floors below it. Rooms on one floor do not know each other, except where MAY_USE says so.
FLOORS = {
    "ground": ("base",),
    "blocks": ("kernels", "text", "layers"),
    "parts": ("losses", "models", "data", "runs"),
    "judgement": ("eval", "diagnose"),
    "work": ("training", "search"),
    "products": ("pictures", "export"),
    "lab": ("reproduce", "report"),
    "doors": ("cli", "serve"),
}
MAY_USE = {
    "layers": {"kernels", "text"},
    "runs": {"models"},
    "diagnose": {"eval"},
    "cli": {"serve"},
}
FLOOR = {room: height for height, rooms in enumerate(FLOORS.values()) for room in rooms}


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


def test_imports_go_one_way():
    wrong = []
    for path in FILES:
        here = room(path)
        if here in ("__init__", "__main__"):
            continue
        assert here in FLOOR, f"{here} has no floor yet: place it in FLOORS"
        wrong += [
            f"{path.relative_to(PACKAGE)} imports selhn.{there}, which is not below {here}"
            for there in imported_rooms(path)
            if there != here and FLOOR[there] >= FLOOR[here] and there not in MAY_USE.get(here, ())
        ]
    assert not wrong, "\n".join(wrong)


def test_one_noun_per_file():
    for path in FILES:
        text = path.read_text()
        assert text.count("\n") <= 350, f"{path}: a file of more than 350 lines has two nouns in it"
        assert "from __future__ import annotations" not in text, f"{path}: jaxtyping checks annotations as objects"
