"""How large the house is, and how hard to find one's way in it: counted, so that denser code is not taken for less.

    python benchmarks/house.py
    python benchmarks/house.py --before PATH_OF_ANOTHER_CHECKOUT

Python lines include docstrings and blank lines. Statements are those of the syntax tree, docstrings left out. An
import edge is a pair of entries at the top of `src/selhn` of which the first imports the second, anywhere in a file.
`isinstance` on own classes counts every class of the package that a call of it names. The core is the research half
without `reproduce` and `report`.
Members of a base class are the public names in its body, without `extra_repr`, which is torch's. The hops are those
that `docs/architecture.md` lists; a checkout without that page has none to count.
"""

import argparse
import ast
import re
from collections import Counter
from pathlib import Path

from report import table

ROOT = Path(__file__).parents[1]
LONG = 110
CORE = (
    "base", "text", "layers", "kernels", "ops", "losses", "models", "data", "runs", "eval", "diagnose", "training",
    "integrations", "export",
)  # fmt: skip
BASES = {"losses": ("losses/base.py", "AbstractLoss"), "models": ("models/matcher.py", "AbstractMatcher")}


def measure(root: Path) -> dict[str, int]:
    """All counts of one checkout."""
    package = root / "src" / "selhn"
    sources = sorted(package.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    page = [path for path in package.rglob("*") if path.suffix in {".js", ".html", ".css", ".jinja"}]
    entries = [
        path
        for path in package.iterdir()
        if path.name not in ("__init__.py", "__main__.py", "py.typed", "__pycache__")
    ]
    names = Counter(path.name for path in sources if not path.name.startswith("__"))
    classes = Counter(
        node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    rooms = Counter[str]()
    for path, text in texts.items():
        rooms[path.relative_to(package).parts[0]] += text.count("\n")
    core = {path: tree for path, tree in trees.items() if path.relative_to(package).parts[0] in CORE}
    return {
        "entries at the top": len(entries),
        "import edges between them": len(edges(package, trees)),
        "Python files": len(sources),
        "Python lines": sum(text.count("\n") for text in texts.values()),
        "Python statements": sum(map(statements, trees.values())),
        f"Python lines over {LONG} columns": sum(
            len(line) > LONG for text in texts.values() for line in text.split("\n")
        ),
        "lines of JavaScript, HTML, CSS and templates": sum(path.read_text().count("\n") for path in page),
        "file names used twice or more": sum(number > 1 for number in names.values()),
        "class names used twice or more": sum(number > 1 for number in classes.values()),
        "isinstance on own classes": sum(asked(tree, set(classes)) for tree in trees.values()),
        "isinstance on own classes, core": sum(asked(tree, set(classes)) for tree in core.values()),
        "lines of the core": sum(rooms[room] for room in CORE),
        "members of AbstractLoss": members(package / BASES["losses"][0], BASES["losses"][1]),
        "members of AbstractMatcher": members(package / BASES["models"][0], BASES["models"][1]),
        "longest function, lines": max(
            length for tree in trees.values() for length in function_lengths(tree)
        ),
        "test files": len(list((root / "tests").rglob("test_*.py"))),
        "lines of tests": sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py")),
        **{f"hops, {walk}": number for walk, number in hops(root).items()},
        **{f"lines, {room}": number for room, number in sorted(rooms.items()) if "." not in room},
    }


def edges(package: Path, trees: dict[Path, ast.Module]) -> set[tuple[str, str]]:
    """Which entry imports which."""
    found = set()
    for path, tree in trees.items():
        here = path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(tree):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            there = {module.split(".")[1] for module in modules if module.startswith("selhn.")}
            found |= {(here, one) for one in there - {here} if here not in ("__init__", "__main__")}
    return found


def statements(tree: ast.Module) -> int:
    """Statements without docstrings."""
    every = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in every)


def asked(tree: ast.Module, own: set[str]) -> int:
    """How many times `isinstance` is asked about one of the package's own classes."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 2]
    asks = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "isinstance"]
    named = [
        {part.id for part in ast.walk(ask.args[1]) if isinstance(part, ast.Name)}
        | {part.attr for part in ast.walk(ask.args[1]) if isinstance(part, ast.Attribute)}
        for ask in asks
    ]
    return sum(len(names & own) for names in named)


def function_lengths(tree: ast.Module) -> list[int]:
    """Lines of every function."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.end_lineno or 0) - node.lineno + 1 for node in ast.walk(tree) if isinstance(node, kinds)
    ] or [0]


def members(path: Path, name: str) -> int:
    """Public names in the body of a class."""
    path = path if path.exists() else path.with_name("base.py")  # where it was before
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name).body
    found = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    found |= {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return len({one for one in found if not one.startswith("_")} - {"extra_repr"})


def hops(root: Path) -> dict[str, int]:
    """The steps of the walks that the page on the architecture lists."""
    page = root / "docs" / "architecture.md"
    if not page.exists():
        return {}
    parts = re.split(r"^### ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    counted = {part.split("\n")[0]: len(re.findall(r"^\d+\. ", part, flags=re.MULTILINE)) for part in parts}
    return {walk: number for walk, number in counted.items() if number}


def main() -> None:
    """Print the counts, beside those of another checkout if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, default=None, help="another checkout, to compare with")
    arguments = parser.parse_args()
    now = measure(ROOT)
    before = measure(arguments.before) if arguments.before is not None else {}
    rows = [
        [name, *([f"{before.get(name, '')}"] if before else []), f"{now.get(name, '')}"]
        for name in dict.fromkeys((*now, *before))
    ]
    print(table(["", *(["before"] if before else []), "now"], rows))


if __name__ == "__main__":
    main()
