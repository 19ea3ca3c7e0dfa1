"""The decoder program: a separate process that turns the bytes of a picture into RGB, within limits.

`selhn.pictures.decoder_processes` starts it and talks to it through its standard input and output. It is run by its
path and imports nothing of selhn but two files beside it, so that it is ready at once.
"""

import json
import os
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO

if __name__ == "__main__":  # find packages where the parent process finds them
    sys.path[:] = [*json.loads(sys.argv[1]), os.path.dirname(os.path.abspath(__file__))]

from PIL import AvifImagePlugin, Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING or __name__ != "__main__":
    from selhn.pictures import picture_headers as headers
    from selhn.pictures import video_frames
    from selhn.pictures.picture_headers import DECODER_ERRORS, Missing, Refused
else:
    import picture_headers as headers
    import video_frames
    from picture_headers import DECODER_ERRORS, Missing, Refused

SLOW = {"AVIF": 3, "HEIF": 3}
"""Formats that take more time per pixel than the others."""
AMPLE = 2
"""A picture that is resized afterwards needs this many pixels for each that remains, along both sides."""
ROWS = 512
"""Rows that are converted at a time, if a conversion needs several copies."""


def decode(content: bytes, request: dict[str, Any]) -> tuple[list[Image.Image], dict[str, Any]]:
    """The picture in some bytes, or frames of the file `video`, and what to say about it.

    A request has limits (`most_pixels`, `seconds`, `seconds_per_megapixel`, `memory`, `deadline`), and perhaps `within`
    (pixels of the longer side) or `resized` (width and height). With `only_facts` nothing is decoded.
    """
    allow_seconds(request["seconds"])
    try:
        if "video" in request:
            return video_frames.frames(request, allow_seconds)
        raw = headers.raw_kind(content)
        content, of_raw = headers.preview(content) if raw else (content, {})
        with headers.open_image(content) as opened:
            facts = {**headers.describe(opened, content), **of_raw}
            if request.get("only_facts"):
                return [], {"facts": facts}
            reduced = headers.check(opened, content, request["most_pixels"])
            megapixels = opened.width * opened.height / 1e6 / reduced**2 * SLOW.get(opened.format or "", 1)
            allow_seconds(request["seconds"] + request["seconds_per_megapixel"] * megapixels)
            notes = kind_notes(opened, raw, reduced)
            if opened.format != "HEIF":  # a HEIF begins with its main picture
                opened.seek(0)
            promised, within, resized = (
                opened.width * opened.height,
                request.get("within"),
                request.get("resized"),
            )
            # A JPEG is decoded at 1/2, 1/4 or 1/8 while both of its sides stay at least this long.
            enough = within or (AMPLE * max(resized) if resized else max(opened.size))
            if reduced > 1 or enough < max(opened.size):
                opened.draft(
                    None, (min(enough, opened.width // reduced), min(enough, opened.height // reduced))
                )
            opened.load()
            if opened.width * opened.height > promised:  # its header lied
                raise headers.too_large(*opened.size, request["most_pixels"])
            image, turned = upright(opened)
            image = to_rgb(image)
            if within:
                image.thumbnail((within, within), Image.Resampling.LANCZOS)
            if resized:
                image = image.resize(tuple(resized), Image.Resampling.BICUBIC)
            kind = raw or opened.format
            return [image], {"size": image.size, "notes": notes + turned, "format": kind, "facts": facts}
    except UnidentifiedImageError:
        raise headers.why_not(content, request["most_pixels"]) from None
    except MemoryError:
        raise Refused("does not fit into memory: give a smaller copy") from None
    except DECODER_ERRORS as broken:
        why = headers.reason(broken)
        raise Refused(f"cannot be read as a picture ({why}): copy or export it again") from None


def kind_notes(opened: Image.Image, raw: str, reduced: int) -> list[str]:
    """What is done to a picture because of its kind."""
    notes = []
    if raw:
        notes.append("its preview is used")
    if opened.format != "MPO" and getattr(opened, "is_animated", False):
        notes.append("its main picture is used" if opened.format == "HEIF" else "its first frame is used")
    if reduced > 1:
        notes.append(f"read at 1/{reduced} of its width and height")
    if opened.mode not in ("RGB", "L"):
        notes.append(f"converted from {opened.mode}")
    return notes


def upright(image: Image.Image) -> tuple[Image.Image, list[str]]:
    """The picture turned as EXIF says; damaged EXIF data are ignored: the picture itself may be intact."""
    try:
        if image.getexif().get(headers.ORIENTATION) not in range(2, 9):
            return image, []
        return ImageOps.exif_transpose(image), ["turned as its EXIF data say"]
    except DECODER_ERRORS:
        return image, ["its EXIF data are damaged and were not used"]


def to_rgb(image: Image.Image) -> Image.Image:
    """RGB; transparent parts become white, 16 bits per channel become 8."""
    if image.mode.startswith("I") or image.mode == "F":
        convert = from_numbers
    elif image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        convert = on_white
    else:
        return image if image.mode == "RGB" else image.convert("RGB")
    whole = Image.new("RGB", image.size)
    for top, band in bands(image):
        whole.paste(convert(band), (0, top))
    return whole


def from_numbers(image: Image.Image) -> Image.Image:
    """16 bits or floating point to RGB."""
    import numpy as np

    values = np.asarray(image).astype(np.float32)
    span = 257.0 if image.mode.startswith("I") else 1.0
    return Image.fromarray(np.nan_to_num(values / span).clip(0, 255).astype(np.uint8)).convert("RGB")


def on_white(image: Image.Image) -> Image.Image:
    """Transparent parts on white, as RGB."""
    layered = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")


def bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Some rows of the picture at a time, and where they begin."""
    for top in range(0, image.height, ROWS):
        part = (0, top, image.width, min(top + ROWS, image.height))
        yield top, image if image.height <= ROWS else image.crop(part)


def allow_seconds(seconds: float) -> None:
    """Allow this much more CPU time; after that the system ends this process."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def allow_clock(seconds: float) -> None:
    """The same limit in wall-clock time, from the request to the end of the answer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


@lru_cache
def _statm() -> int:
    return os.open("/proc/self/statm", os.O_RDONLY)


def allow_memory(size: int) -> None:
    """Allow this many bytes more than this process has; beyond them there is a MemoryError."""
    with suppress(ImportError, OSError, ValueError):  # not Linux, or a lower limit is set already
        import resource

        now = int(os.pread(_statm(), 100, 0).split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def end_with_parent() -> None:
    """End this process as soon as nobody can write to its input any more, whatever it is doing."""
    if hasattr(select, "poll"):
        closed = select.poll()
        closed.register(0, 0)
        closed.poll()
        os._exit(0)


def answer(take: BinaryIO, give: BinaryIO) -> bool:
    """Read one request and answer it; False if there are no more."""
    lengths = take.read(12)
    if len(lengths) < 12:
        return False
    head, body = struct.unpack("<IQ", lengths)
    request = json.loads(take.read(head))
    allow_memory(request["memory"])
    allow_clock(request["deadline"])
    content, images = take.read(body), list[Image.Image]()
    try:
        images, said = decode(content, request)
    except Refused as why:
        said = {"refused": str(why), "missing": isinstance(why, Missing)}
    except Exception:  # a bug: its traceback is raised on the other side
        said = {"bug": traceback.format_exc()}
    allow_seconds(0)
    told = json.dumps(said, default=headers.as_json).encode()
    give.write(struct.pack("<I", len(told)) + told)
    for image in images:
        for _, band in bands(image):
            give.write(band.tobytes())
    give.flush()
    allow_clock(0)
    return True


def main() -> None:
    """Answer requests until there are no more."""
    for name in ("SIGINT", "SIGTERM"):  # sent to the whole process group: the parent decides
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    for name in ("SIGPROF", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # `check` limits it instead
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    threading.Thread(target=end_with_parent, daemon=True).start()
    take, give = sys.stdin.buffer, sys.stdout.buffer
    while answer(take, give):
        pass


if __name__ == "__main__":
    main()
