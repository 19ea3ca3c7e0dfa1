"""The files of indexed pictures, unchanged, with headers that let a browser run nothing in them."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from selhn.pictures.picture_folders import opened_located

SHOWN = {
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".jpe": "image/jpeg", ".jfif": "image/jpeg", ".png": "image/png",
    ".gif": "image/gif", ".webp": "image/webp", ".avif": "image/avif", ".bmp": "image/bmp",
}  # fmt: skip
"""Kinds that browsers show; all others are downloads."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
AT_ONCE = 256 * 2**10


def original(path: Path, download: bool) -> Response:
    """The content of a located file, read while it is sent."""
    kind = SHOWN.get(path.suffix.lower())
    with ExitStack() as stack:
        file = stack.enter_context(opened_located(path))
        size = os.fstat(file.fileno()).st_size
        opened = stack.pop_all()

    def content() -> Iterator[bytes]:
        with opened:
            left = size  # what is appended meanwhile would not fit the Content-Length
            while left and (some := file.read(min(AT_ONCE, left))):
                left -= len(some)
                yield some

    way = "attachment" if download or kind is None else "inline"
    headers = {
        "Content-Disposition": f"{way}; filename*=UTF-8''{quote(path.name.encode('utf-8', 'replace'))}",
        "Content-Length": str(size),
        "Content-Security-Policy": POLICY,
    }
    return StreamingResponse(content(), media_type=kind or "application/octet-stream", headers=headers)
