"""Pictures inside a page: scenes of the generated world as they are drawn, others from their files."""

import base64
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from selhn.base.untrusted import read_json
from selhn.data import Split
from selhn.data.world import WorldFeatures, world_scene
from selhn.data.world.render import render
from selhn.pictures import open_picture
from selhn.pictures.extraction import REPORT_FILE
from selhn.training.recipes import find_data

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 200
"""Most pixels a side: sharp at half that size on a fine screen, and a few kilobytes."""
QUALITY = 78

PictureOf = Callable[[int], str | None]
"""From the row of an image to its picture as a data: address, or None if there is none."""


def picture_source(split: Split, folder: Path | None = None) -> PictureOf:
    """How the images of a split are shown: from a folder with files of their names, or drawn."""

    @cache
    def picture(row: int) -> str | None:
        if folder is not None:
            return _from_folder(folder, split.image_names[row])
        if isinstance(split.features, WorldFeatures):
            return data_address(render(world_scene(split, row), SIDE))
        return None

    return picture


def imported_from(data: str) -> Path | None:
    """The folder of pictures that a data set was imported from, if it is known and still there."""
    told = Path(find_data(data)) / REPORT_FILE
    folder = read_json(told).get("folder") if told.is_file() else None
    return Path(folder) if isinstance(folder, str) and Path(folder).is_dir() else None


def data_address(image: "Image") -> str:
    """A picture, shrunk to fit, as a JPEG inside an address."""
    small, file = image.copy(), io.BytesIO()
    small.thumbnail((SIDE, SIDE))
    small.save(file, "JPEG", quality=QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _from_folder(folder: Path, name: str) -> str | None:
    """The picture of that name; one that is missing, broken, or outside of the folder is none."""
    try:
        path = (folder / name).resolve()
        return data_address(open_picture(path).image) if path.is_relative_to(folder.resolve()) else None
    except (ValueError, OSError):  # a name with a null character is a ValueError
        return None
