"""The files of indexed pictures and videos, unchanged, with headers that let browsers run nothing in them."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from fastapi import HTTPException
from starlette.responses import Response, StreamingResponse

from selhn.pictures.picture_folders import opened_located

SHOWN = {
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".jpe": "image/jpeg", ".jfif": "image/jpeg", ".png": "image/png",
    ".gif": "image/gif", ".webp": "image/webp", ".avif": "image/avif", ".bmp": "image/bmp",
    # A .mov has the same content as an .mp4, and browsers play it under that name.
    ".mp4": "video/mp4", ".m4v": "video/mp4", ".mov": "video/mp4", ".webm": "video/webm", ".mkv": "video/x-matroska",
}  # fmt: skip
"""Kinds that browsers show; all others are downloads."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; "
AT_ONCE, MOST_OF_RANGE = 256 * 2**10, 8 * 2**20
"""Bytes that are read at a time, and of a range without an end."""
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def original(path: Path, download: bool, wanted: str = "") -> Response:
    """The content of a located file, or the range of it that a header asks for, read while it is sent.

    A range without an end is bounded, since a player asks for the rest when it needs it; a download that is continued
    gets all of it.
    """
    kind = SHOWN.get(path.suffix.lower())
    with ExitStack() as stack:
        file = stack.enter_context(opened_located(path))
        size = os.fstat(file.fileno()).st_size
        part = _part(wanted, size, size if download else MOST_OF_RANGE)
        first, end = part or (0, size)
        file.seek(first)
        opened = stack.pop_all()

    def content() -> Iterator[bytes]:
        with opened:
            left = end - first  # what is appended meanwhile would not fit the Content-Length
            while left and (some := file.read(min(AT_ONCE, left))):
                left -= len(some)
                yield some

    media_type = kind or "application/octet-stream"
    way = "attachment" if download or kind is None else "inline"
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"{way}; filename*=UTF-8''{quote(path.name.encode('utf-8', 'replace'))}",
        "Content-Length": str(end - first),
        # In a sandbox a file has no origin, and a browser's own page for a video could not load it.
        "Content-Security-Policy": POLICY
        + ("media-src 'self'" if media_type.startswith("video/") else "sandbox"),
    }
    if part is not None:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    return StreamingResponse(content(), 200 if part is None else 206, headers, media_type)


def _part(wanted: str, size: int, most: int) -> tuple[int, int] | None:
    """The first byte, and the one after the last, of a Range header; None for all, as for several ranges at once."""
    found = RANGE.fullmatch(wanted.strip())
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    begin = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1 if first and last else begin + most if first else size)
    if begin >= end:
        reason = f"the range {wanted[:60]!r} is not in the file, which has {size:,} bytes"
        raise HTTPException(416, reason, {"Content-Range": f"bytes */{size}"})
    return begin, end
