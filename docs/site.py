"""The pages of the documentation site, collected in build/pages; `make docs` then builds the site from them.

Beside the pages of docs/ there are the README as its start, the changes, and the reference of commands, settings and
Python names, which is made from the program.
"""

import importlib
import re
import shutil
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
COPIED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contribute.md"}
ROOMS = ("losses", "models", "data", "training", "eval", "diagnose", "search", "pictures", "integrations")
PACKAGES = ["selhn", *(f"selhn.{room}" for room in ROOMS)]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def collect() -> dict[str, str | Path]:
    """Every file of the site by its path: a text, or a file to copy."""
    found: dict[str, str | Path] = {}
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix == ".md":
            found[path.relative_to(ROOT / "docs").as_posix()] = linked(path)
        elif path.suffix in {".png", ".jpg", ".svg"}:
            found[path.relative_to(ROOT / "docs").as_posix()] = path
    found |= {page: linked(ROOT / name) for name, page in COPIED.items()}
    found["reference/commands.md"] = commands()
    found["reference/settings.md"] = "# Settings of training\n\n::: selhn.training.config\n"
    return found | {f"reference/{package.replace('.', '_')}.md": python(package) for package in PACKAGES}


def linked(path: Path) -> str:
    """A page whose links lead to pages of the site; what is not part of it is named instead."""

    def lead(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        file, _, anchor = target.partition("#")
        if "://" in target or not file:
            return link[0]
        leads_to = (path.parent / file).resolve()
        name = leads_to.relative_to(ROOT).as_posix()
        if name in COPIED:
            name = COPIED[name]
        elif name.startswith("docs/") and leads_to.suffix in {".md", ".png", ".jpg", ".svg"}:
            name = name[5:]
        else:
            return text if image else f"{text} (`{name}`)"
        depth = 0 if path.parent == ROOT else len(path.parent.relative_to(ROOT / "docs").parts)
        return f"{image}[{text}]({'../' * depth}{name}{anchor and f'#{anchor}'})"

    text = re.sub(r"^```(\w+) file=(\S+)$", r'```\1 title="\2"', path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return LINK.sub(lead, text)


def commands() -> str:
    """`--help` of every command."""
    from selhn.cli import app

    parts = ["# Commands\n"]

    def add(command: Any, path: str) -> None:
        if command.hidden:
            return
        context = command.context_class(command, info_name=path)
        parts.append(f"## `{path}`\n\n```text\n{command.get_help(context)}\n```\n")
        for name, below in getattr(command, "commands", {}).items():
            add(below, f"{path} {name}")

    add(typer.main.get_command(app), "selhn")
    return "\n".join(parts)


def python(package: str) -> str:
    """The public names of a package with their docstrings."""
    module = importlib.import_module(package)
    names = sorted(name for name in module.__all__ if not name.startswith("_"))
    return f"::: {package}\n    options:\n      heading_level: 1\n      members: {names}\n"


if __name__ == "__main__":
    shutil.rmtree(PAGES, ignore_errors=True)
    for name, content in collect().items():
        (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, PAGES / name)
        else:
            (PAGES / name).write_text(content, encoding="utf-8")
