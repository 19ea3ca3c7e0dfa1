"""What a library of pictures keeps on this machine, where, and how much it is."""

import os
from pathlib import Path

from selhn.pictures.cache import cache_file, default_cache
from selhn.pictures.tower_vectors import TowerVectors
from selhn.towers import AbstractTowers, Towers


def kept_files(index: Path | str | None, towers: AbstractTowers, cache: Path | None = None) -> list[str]:
    """One line for each: the index, the vectors of pictures by their content, the model, and what is no longer used.

    Args:
        index: its folder, or the address of a server.
        cache: folder of the vectors, see `Library.apply`.
    """
    folder, vectors = cache or default_cache(), TowerVectors(towers)
    lines = [f"index: {index} ({told_size(index)})" if isinstance(index, Path) else f"index: {index}"]
    file = cache_file(folder, vectors.cached_as, "float32")
    lines.append(f"vectors, so that pictures that move are not computed again: {file} ({told_size(file)})")
    if isinstance(towers, Towers):
        lines.append(f"model: {towers.folder} ({told_size(towers.folder)})")
    former = cache_file(folder, towers.features, "float16")
    # Without resizing, `selhn data import` still reads and writes that file.
    if former.is_file() and towers.resized is not None:
        lines.append(
            f"no longer used, may be removed: {former} ({told_size(former)}, regions of an earlier version)"
        )
    return lines


def told_size(path: Path) -> str:
    """The size of a file, or of all files below a folder, in words; links are not followed."""
    sizes = [path.lstat().st_size] if path.is_file() else []
    for folder, _, names in os.walk(path):
        sizes += [os.lstat(os.path.join(folder, name)).st_size for name in names]
    size = sum(sizes)
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
