"""Side inputs beside the features of a split: `{split}_{name}.npy`, or what a model's authors wrote."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from selhn.base.errors import Damaged, SelhnError
from selhn.base.types import SIDE_INPUTS
from selhn.base.untrusted import open_array, parse_json, read_text
from selhn.data.side_inputs import Given

AUTHORS_FILES = {"adjacency": "_ims_dir_selfadj4.npy", "dependencies": "_caps.json"}
"""CMCAN's neighbours of regions, and GSMN's parses: a list of pairs for every caption."""
MOST_PAIRS = 1000
"""The most dependencies of one text; usually there are about as many as words."""


def side_files(files: Path, rows: Int[Tensor, " I"], num_rows: int, regions: int) -> dict[str, Given]:
    """The side inputs beside `{files}_ims.npy`, to be read when first used; boxes are read elsewhere.

    An array of images has a row per image, or the `num_rows` of the features, of which the images are `rows`.
    The first `regions` of an image are kept.
    """
    found: dict[str, Given] = {}
    for name in SIDE_INPUTS:
        endings = (f"_{name}.npy", AUTHORS_FILES.get(name)) if name != "boxes" else ()
        path = next((path for end in endings if end and (path := Path(f"{files}{end}")).is_file()), None)
        if path is not None:
            found[name] = partial(_of_images, path, name, rows, num_rows, regions)
    return found


def read_side_input(path: Path, name: str) -> Tensor:
    """The array of a file, or the parses of a JSON file."""
    if path.suffix == ".json":
        return _read_parses(path)
    entry = SIDE_INPUTS[name]
    array = open_array(path, "iu" if entry.dtype == torch.int32 else "fiub", (1 + len(entry.axes.split()),))
    if entry.dtype == torch.int32 and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise SelhnError(f"{path} has numbers beyond 32 bits: {name} are places of words")
    return torch.from_numpy(np.array(array.astype(np.float32) if array.dtype.kind == "f" else array))


def _of_images(path: Path, name: str, rows: Int[Tensor, " I"], num_rows: int, regions: int) -> Tensor:
    value = read_side_input(path, name)
    if SIDE_INPUTS[name].of == "texts":
        return value
    value = value[rows] if len(value) == num_rows else value
    kept = [slice(regions if axis == "M" else None) for axis in SIDE_INPUTS[name].axes.split()]
    return value[(slice(None), *kept)]


def _read_parses(path: Path) -> Int[Tensor, "T E 2"]:
    """A list of pairs of words for every text, padded with -1."""
    parses = parse_json(read_text(path), str(path))
    if not isinstance(parses, list):
        raise Damaged(f"{path} should hold a list with a parse for every caption: check the file")
    for number, pairs in enumerate(parses):
        fits = isinstance(pairs, list) and len(pairs) <= MOST_PAIRS
        if not fits or not all(
            isinstance(pair, list) and list(map(type, pair)) == [int, int] for pair in pairs
        ):
            raise Damaged(
                f"{path}, caption {number}: give at most {MOST_PAIRS} pairs of words, [head, dependent]"
            )
        if any(not 0 <= place < 2**31 for pair in pairs for place in pair):
            raise Damaged(f"{path}, caption {number}: a word is counted from 1, and 0 is the root")
    longest = max(map(len, parses), default=0)
    found = torch.full((len(parses), longest, 2), -1, dtype=torch.int32)
    for row, pairs in zip(found, parses):
        row[: len(pairs)] = torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2)
    return found
