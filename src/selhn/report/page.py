"""One page about one run or several: a single file that needs no network, readable without scripts."""

import base64
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from selhn.base.disk_errors import is_read_only
from selhn.base.errors import NotFound, SelhnError, warn
from selhn.base.files import write_whole
from selhn.base.names import did_you_mean, printable
from selhn.base.sealed import digest_file
from selhn.base.untrusted import read_json
from selhn.base.version import __version__
from selhn.data import Split
from selhn.data.formats import DATASETS, find_format
from selhn.data.splits import SPLITS
from selhn.data.world import WorldFeatures, world_scene
from selhn.data.world.render import render
from selhn.pictures import open_picture
from selhn.pictures.named_folders import named_for
from selhn.pictures.picture_report import REPORT_FILE
from selhn.report.curves import panel_data, panels
from selhn.report.records import RunRecord, compared, lead, read_runs, results
from selhn.report.retrievals import ANSWERS, Examples, find_examples

if TYPE_CHECKING:
    from PIL.Image import Image

PAGE = "report.html"
PAGES = Environment(
    loader=PackageLoader("selhn.report"),
    autoescape=True,  # a caption never becomes a script
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
FILES = files("selhn.report")
SIDE = 200
"""Longest side in pixels: sharp at half that size on a high-resolution screen, and a few kilobytes."""


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
    """Write the page of these runs: `report.html` in the folder of the run, or in the one that holds them.

    Args:
        data: data to search for examples, instead of the runs' own.
        examples: number of queries shown of each kind; 0 leaves the examples out.
        pictures: folder with the images of the data, under their names.
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
    if out is None and len(runs) == 1:
        out = runs[0] / PAGE
    elif out is None:
        above = Path(os.path.commonpath([run.resolve().parent for run in runs]))
        out = (above.relative_to(Path.cwd()) if above.is_relative_to(Path.cwd()) else above) / PAGE
    if out.is_dir():
        raise SelhnError(f"{out} is a folder: name a file, such as {out / PAGE}")
    found = find_examples(records, examples, data, split, device) if examples else None
    # A caption may contain half a character (a lone surrogate), which UTF-8 cannot encode.
    content = page(records, found, data, pictures).encode("utf-8", "xmlcharrefreplace")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(out, content)
    except OSError as error:
        if not is_read_only(error):
            raise
        raise SelhnError(
            f"{out} cannot be written ({error.strerror}): name another file, with --out"
        ) from None
    return out


def page(
    runs: Sequence[RunRecord],
    examples: Examples | dict[str, str] | None,
    data: str | None = None,
    pictures: Path | None = None,
) -> str:
    """The text of the page."""
    verdict = runs[0].found.verdict
    since = verdict.since if len(runs) == 1 and verdict.kind != "healthy" else None
    since = None if since is None else since * runs[0].found.log.steps_a_row
    style, script = (
        "".join((FILES / f"{name}.{kind}").read_text("utf-8") for name in ("chart/chart", "templates/page"))
        for kind in ("css", "js")
    )
    drawn = panels(runs)
    shown: dict[str, Any] = {}
    if isinstance(examples, Examples):  # how the template gets the picture of an image and its first text
        config, split = examples.run.config, examples.split
        source = data or (None if config is None else config.data)
        folder = pictures or (None if source is None else imported_from(source))
        texts = dict(reversed([*zip(split.image_of_text.tolist(), split.captions)]))
        shown = {"picture": shown_picture(examples.whole, folder), "first_text": texts.get}
    return PAGES.get_template("report.html").render(
        runs=runs,
        lead=lead(runs),
        most_answers=ANSWERS,
        results=results(runs),
        panels=drawn,
        since=since,
        curve_data=[panel_data(panel, since) for panel in drawn],
        examples=examples,
        settings=compared([run.settings for run in runs]),
        environment=compared([run.environment for run in runs]),
        version=__version__,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        **shown,
    )


def _hash(content: str) -> str:
    """A hash for the content security policy, which allows only this page's own style and script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def shown_picture(split: Split, folder: Path | None = None) -> Callable[[int], str | None]:
    """How to show an image, by its row: drawn, or its file inside the folder; None if neither."""

    @cache
    def picture(row: int) -> str | None:
        if folder is not None:
            try:
                path = (folder / split.image_names[row]).resolve()
                inside = path.is_relative_to(folder.resolve())
                return data_address(open_picture(path).image) if inside else None
            except (ValueError, OSError):  # missing or broken; a name with a null character is a ValueError
                return None
        if isinstance(split.features, WorldFeatures):
            return data_address(render(world_scene(split, row), SIDE))
        return None

    return picture


def imported_from(data: str) -> Path | None:
    """The folder of pictures that a data set was imported from, if it was imported on this machine."""
    told = (find_format(data)[0] if data in DATASETS else Path(data)) / REPORT_FILE
    folder = read_json(told).get("folder") if told.is_file() else None
    if not isinstance(folder, str):
        return None
    if Path(folder) in named_for(told.parent, digest_file(told)):
        return Path(folder)
    warn(
        f"{told} says that the pictures are in {printable(folder)}, and it was not made here, or was moved: no file "
        "there is opened; to show them, name that folder with --pictures (pictures=)"
    )
    return None


def data_address(image: "Image") -> str:
    """A picture, shrunk to fit, as a JPEG data URL."""
    small, file = image.copy(), io.BytesIO()
    small.thumbnail((SIDE, SIDE))
    small.save(file, "JPEG", quality=78, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
