"""Small copies of indexed pictures, from the indexed folders only and without EXIF."""

from collections import OrderedDict
from pathlib import Path
from threading import Lock

from selhn.base.errors import SelhnError
from selhn.pictures.picture_files import drawn
from selhn.pictures.picture_folders import located_source

SIZES = (160, 320, 640, 1280, 2560)
"""Pixels of the longer side; no others, so that the number of copies is bounded."""
MOST_BYTES = 64 * 2**20
"""Of the thumbnails in memory."""


class Thumbnails:
    """Thumbnails; the most recently used are kept, up to a number of bytes."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self.most_bytes, self.bytes = most_bytes, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, path: Path, size: int, moment: float | None = None) -> tuple[bytes, str]:
        """A JPEG of a located file, at most `size` pixels long, and a tag that changes with file and size.

        `moment`: seconds into a video, see `located_source`.
        """
        if size not in SIZES:
            raise SelhnError(f"size is {size}: choose {', '.join(map(str, SIZES))}")
        found = path.lstat()
        tag = f"{found.st_dev:x}-{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}-{size}"
        tag += "" if moment is None else f"-{moment:g}"
        with self._lock:
            if tag in self._kept:
                self._kept.move_to_end(tag)
                return self._kept[tag], tag
        made = drawn(located_source(path, moment), path.name, size)
        with self._lock:
            if tag not in self._kept and len(made) <= self.most_bytes:
                self._kept[tag] = made
                self.bytes += len(made)
            while self.bytes > self.most_bytes:
                self.bytes -= len(self._kept.popitem(last=False)[1])
        return made, tag
