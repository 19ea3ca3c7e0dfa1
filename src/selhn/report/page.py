"""One page about one run or several, complete in itself: no network, no other file, and readable without a script."""

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import did_you_mean
from selhn.base.version import __version__
from selhn.data.formats import SPLITS
from selhn.report.chart import draw_panel, panel_data
from selhn.report.curves import panels
from selhn.report.examples import Examples, find_examples
from selhn.report.gallery import gallery, reasons
from selhn.report.markup import Html, data_block, element, together
from selhn.report.pictures import imported_from, picture_source
from selhn.report.runs import RunRecord, read_runs
from selhn.report.sections import anchor, environment, lead, results, section, settings, verdicts

PAGE = "report.html"


def write_report(
    runs: Sequence[Path],
    out: Path | None = None,
    *,
    data: str | None = None,
    split: str = "test",
    examples: int = 3,
    pictures: Path | None = None,
    device: str = "auto",
) -> Path:
    """Write the page of these runs; `report.html` in the folder of the run, or in the one that holds them all.

    Args:
        data: other data than the runs' own, to search for examples.
        examples: how many queries of a kind are shown; 0 leaves the examples out.
        pictures: folder in which the images of the data lie under their names.
    """
    if not runs:
        raise SelhnError("name at least one run")
    if examples < 0:
        raise SelhnError(f"examples must be 0 or more, got {examples}")
    if split not in SPLITS:
        raise NotFound(f"there is no split {split!r}: {did_you_mean(split, SPLITS)}")
    if pictures is not None and not pictures.is_dir():
        raise NotFound(f"there is no folder {pictures}: name the one that holds the images")
    records = read_runs(runs)
    out = out or _place(runs)
    if out.is_dir():
        raise SelhnError(f"{out} is a folder: name a file, such as {out / PAGE}")
    found = find_examples(records, examples, data, split, device) if examples else None
    # Half a character, which a caption may hold, has no bytes in UTF-8.
    content = page(records, found, data, pictures).encode("utf-8", "xmlcharrefreplace")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(content)
    return out


def _place(runs: Sequence[Path]) -> Path:
    if len(runs) == 1:
        return runs[0] / PAGE
    above = Path(os.path.commonpath([run.resolve().parent for run in runs]))
    return (above.relative_to(Path.cwd()) if above.is_relative_to(Path.cwd()) else above) / PAGE


def page(
    runs: Sequence[RunRecord],
    examples: Examples | dict[str, str] | None,
    data: str | None = None,
    pictures: Path | None = None,
) -> str:
    """The text of the page."""
    drawn = panels(runs)
    since = runs[0].verdict.since if len(runs) == 1 and runs[0].verdict.kind != "healthy" else None
    since = None if since is None else since * runs[0].log.steps_a_row
    charts = [draw_panel(number, panel, since) for number, panel in enumerate(drawn)]
    shaded = f" The shaded part is {runs[0].verdict.kind}." if since is not None else ""
    how = f"Lines are running means, bands reach from the least to the greatest value of neighbouring steps.{shaded}"
    parts = {
        "Verdict": verdicts(runs),
        "Results": results(runs),
        "Curves": together(element("p", how, class_="quiet"), element("div", *charts, class_="panels")),
        "Examples": _examples(examples, data, pictures),
        "Settings": settings(runs),
        "Environment": environment(runs),
    }
    parts = {title: inside for title, inside in parts.items() if inside}
    style, script = (files("selhn.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    template = Template(files("selhn.report").joinpath("page.html").read_text("utf-8"))
    names = ", ".join(run.name for run in runs)
    return template.substitute(
        title=together(f"{names}: report of selhn"),
        heading=together(names),
        lead=together(lead(runs)),
        contents=together(*(element("a", title, href=f"#{anchor(title)}") for title in parts)),
        sections=together(*(section(title, inside) for title, inside in parts.items())),
        version=together(__version__),
        data=data_block("curve-data", [panel_data(panel) for panel in drawn]),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _examples(examples: Examples | dict[str, str] | None, data: str | None, pictures: Path | None) -> Html:
    if examples is None:
        return Html()
    if not isinstance(examples, Examples):
        return element("p", f"There are none, because no model and data could be opened: {reasons(examples)}.")
    config = examples.run.config
    source = data or (config.data if config is not None else None)
    folder = pictures or (imported_from(source) if source is not None else None)
    return gallery(examples, picture_source(examples.whole, folder))


def _hash(content: str) -> str:
    """By which the page says that this style and this script are its own, and no other is to be obeyed."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
