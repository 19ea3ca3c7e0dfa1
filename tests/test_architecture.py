"""The house: which rooms there are, on which floor each stands, and that nothing grows out of sight.

`python tests/test_architecture.py` writes the list of floors into docs/architecture.md.
"""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "selhn"
FILES = sorted(PACKAGE.rglob("*.py"))
# A room may use the floors below it. Rooms on one floor do not know each other, except where MAY_USE says so.
FLOORS = {
    "ground": ("base",),
    "blocks": ("kernels", "text", "ops"),
    "parts": ("losses", "models", "data", "runs", "towers"),
    "judgement": ("eval", "diagnose"),
    "work": ("training", "search"),
    "products": ("pictures", "export", "integrations"),
    "lab": ("reproduce", "report"),
    "doors": ("cli", "serve"),
}
MAY_USE = {
    "kernels": {"ops"},
    "ops": {"kernels", "text"},
    "runs": {"models"},
    "diagnose": {"eval"},
    "export": {"pictures"},
    "cli": {"serve"},
}
# Rooms below that a room does without all the same. Search knows of `data` only splits and blocks of rows.
NEVER = {"search": {"models", "eval", "text"}, "towers": {"text", "ops", "kernels"}}
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
MARKS = ("<!-- written by tests/test_architecture.py: from here -->", "<!-- to here -->")
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


def test_search_needs_no_model():
    for here, not_wanted in NEVER.items():
        for path in (PACKAGE / here).rglob("*.py"):
            found = not_wanted.intersection(imported_rooms(path))
            assert not found, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(found))}"


def test_one_noun_per_file():
    for path in FILES:
        text = path.read_text()
        assert text.count("\n") <= 350, f"{path}: a file of more than 350 lines has two nouns in it"
        assert "from __future__ import annotations" not in text, (
            f"{path}: jaxtyping checks annotations as objects"
        )


def listed():
    """The floors, the highest first, each room with the first sentence of its docstring."""
    lines = []
    for height, (floor, rooms) in reversed(list(enumerate(FLOORS.items()))):
        lines.append(f"**{height} {floor}**\n")
        for name in rooms:
            source = PACKAGE / name / "__init__.py" if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"
            words = ast.get_docstring(ast.parse(source.read_text())).split("\n")[0]
            beside = MAY_USE.get(name)
            also = (
                f" It also uses {' and '.join(f'`{one}/`' for one in sorted(beside))} beside it."
                if beside
                else ""
            )
            lines.append(
                f"- `{name}/`: {words}{also}" if source.parent.name == name else f"- `{name}`: {words}{also}"
            )
        lines.append("")
    return "\n".join(lines)


def page(text):
    before, rest = text.split(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{listed()}{MARKS[1]}{rest.split(MARKS[1])[1]}"


def test_the_page_lists_the_floors():
    text = PAGE.read_text()
    assert page(text) == text, "run python tests/test_architecture.py"


def test_every_hop_of_a_walk_exists():
    for walk in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        hops = re.findall(r"^\d+\. `([\w/.]+)::([\w.]+)`", walk, re.MULTILINE)
        assert len(hops) == len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) > 10, "each is `file::name`"
        for file, name in hops:
            found = rf"\b(class|def|function|const) {name.split('.')[-1]}\b"
            assert re.search(found, (PACKAGE / file).read_text()), f"{file} has no {name}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
