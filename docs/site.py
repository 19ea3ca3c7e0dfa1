"""The documentation site: `make docs` collects its pages with this, builds them, and files them by version.

Beside the pages of docs/ there are the README as its start, the changes, the notebook, and the reference, which
docs/reference.py makes from the program. `python docs/site.py` writes build/pages. `python docs/site.py file` moves
what was built to build/site/VERSION, where the builds of other versions stay beside it.
"""

import base64
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES, BUILT, SITE = (ROOT / "build" / name for name in ("pages", "built", "site"))
COPIED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contribute.md"}
COPIED |= {"SECURITY.md": "security.md", "examples/tour.ipynb": "tour.md"}
PICTURES = {".png", ".jpg", ".svg"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def collect() -> dict[str, str | bytes | Path]:
    """Every file of the site by its path: a text, bytes, or a file to copy."""
    found: dict[str, str | bytes | Path] = {}
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix == ".md":
            found[path.relative_to(ROOT / "docs").as_posix()] = linked(path, path.read_text(encoding="utf-8"))
        elif path.suffix in PICTURES | {".css"}:
            found[path.relative_to(ROOT / "docs").as_posix()] = path
    for name, page in COPIED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name.endswith(".ipynb"):
            text, pictures = notebook(text, page.removesuffix(".md"))
            found |= pictures
        found[page] = linked(ROOT / name, text)
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    return found | reference.pages()


def linked(path: Path, text: str) -> str:
    """A page whose links lead to pages of the site; what is not part of it is named instead."""

    def lead(link: re.Match[str]) -> str:
        image, said, target = link.groups()
        file, _, anchor = target.partition("#")
        leads_to = (path.parent / file).resolve()
        if "://" in target or not file or not leads_to.exists():
            return link[0]
        name = leads_to.relative_to(ROOT).as_posix()
        if name in COPIED:
            name = COPIED[name]
        elif name.startswith("docs/") and leads_to.suffix in PICTURES | {".md"}:
            name = name[5:]
        elif image:
            return said
        else:
            return f"`{name}`" if said.strip("`") in name else f"{said} (`{name}`)"
        depth = len(path.parent.relative_to(ROOT / "docs").parts) if ROOT / "docs" in path.parents else 0
        return f"{image}[{said}]({'../' * depth}{name}{anchor and f'#{anchor}'})"

    text = re.sub(r"^```(\w+) file=(\S+)$", r'```\1 title="\2"', text, flags=re.MULTILINE)
    return LINK.sub(lead, text)


def notebook(text: str, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, with what its cells printed and drew."""
    parts, pictures = [], {}
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("data", {})
            if "image/png" in shown:
                picture = f"{name}_{len(pictures)}.png"
                pictures[picture] = base64.b64decode(shown["image/png"])
                parts.append(f"![What the cell above draws]({picture})")
            else:
                printed = "".join(output.get("text") or shown.get("text/plain", ""))
                parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def write_pages() -> None:
    """All pages, in build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name, content in collect().items():
        (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, PAGES / name)
        else:
            (PAGES / name).write_bytes(content.encode() if isinstance(content, str) else content)


def file_by_version(version: str) -> None:
    """Move what was built to its version; the page can switch between all that are there."""
    shutil.rmtree(SITE / version, ignore_errors=True)
    SITE.mkdir(parents=True, exist_ok=True)
    BUILT.rename(SITE / version)
    order = sorted((path.parent.name for path in SITE.glob("*/index.html")), key=_numbers, reverse=True)
    known = [
        {"version": one, "title": one, "aliases": ["latest"] if one == order[0] else []} for one in order
    ]
    (SITE / "versions.json").write_text(json.dumps(known))
    newest = f'<meta http-equiv="refresh" content="0; url={order[0]}/index.html">'
    (SITE / "index.html").write_text(
        f'<!doctype html><title>selhn</title>{newest}<a href="{order[0]}/index.html">selhn</a>'
    )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


if __name__ == "__main__":
    if sys.argv[1:] == ["file"]:
        from selhn.base.version import __version__

        file_by_version(__version__)
        where = SITE.relative_to(ROOT)
        print(f"{where}/index.html; to search in it, serve it: python3 -m http.server -d {where}")
    else:
        write_pages()
