"""The program of a decoder: a process of its own that turns the bytes of a picture into RGB, within limits.

`selhn.pictures.decoding` starts it and talks to it through its standard input and output. It is run by its
path and imports nothing of selhn, so that it is ready at once.
"""

import io
import json
import os
import re
import select
import signal
import struct
import sys
import threading
import traceback
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

if __name__ == "__main__":  # packages are found where the process that started this one finds them
    sys.path[:] = json.loads(sys.argv[1])

from PIL import Image, ImageOps, UnidentifiedImageError

# No format that calls another program (EPS), holds documents (PDF) or is decoded to know its size (ICO).
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF")
MOST_SCANS = 100
"""Of a JPEG; each is a pass over the whole picture. Encoders write about ten. libtiff has this limit too."""
ROWS = 512
"""Rows that are converted at a time, where a conversion needs several copies."""
# What Pillow's decoders raise for bytes that are not what they should be.
DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, LookupError, ArithmeticError, TypeError, EOFError, struct.error,
    zlib.error,
)  # fmt: skip
ORIENTATION, MAKE, MODEL, CHANGED = 0x0112, 0x010F, 0x0110, 0x0132
EXIF, TAKEN, DIGITIZED = 0x8769, 0x9003, 0x9004
GPS, LATITUDE, LONGITUDE = 0x8825, (1, 2), (3, 4)
WIDTH, HEIGHT = 0x0100, 0x0101
# A marker that libjpeg acts on: not a stuffed zero, a restart, or one without a meaning between segments.
MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
END_OF_IMAGE, START_OF_SCAN = 0xD9, 0xDA


class Refused(Exception):
    """Why a picture is not decoded, in words that follow its name."""


def decode(content: bytes, request: dict[str, Any]) -> tuple[Image.Image | None, dict[str, Any]]:
    """The picture in some bytes, and what to say about it.

    A request has limits (`most_pixels`, `seconds`, `seconds_per_megapixel`, `memory`), and perhaps `within`
    (pixels of the longer side) or `resized` (width and height). With `only_facts` nothing is decoded.
    """
    allow_seconds(request["seconds"])
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            facts = describe(opened, content)
            if request.get("only_facts"):
                return None, {"facts": facts}
            check(opened, content, request["most_pixels"])
            megapixels = opened.width * opened.height / 1e6
            allow_seconds(request["seconds"] + request["seconds_per_megapixel"] * megapixels)
            moves = opened.format != "MPO" and getattr(opened, "is_animated", False)
            notes = ["its first frame is used"] if moves else []
            if opened.mode not in ("RGB", "L"):
                notes.append(f"converted from {opened.mode}")
            opened.seek(0)
            if request.get("within"):
                opened.draft(None, (request["within"], request["within"]))
            opened.load()
            image, turned = upright(opened)
            image = to_rgb(image)
            if request.get("within"):
                image.thumbnail((request["within"], request["within"]), Image.Resampling.LANCZOS)
            if request.get("resized"):
                image = image.resize(tuple(request["resized"]), Image.Resampling.BICUBIC)
            said = {"size": image.size, "notes": notes + turned, "format": opened.format, "facts": facts}
            return image, said
    except Image.DecompressionBombError as error:
        most = request["most_pixels"]
        raise Refused(f"is too large ({error}): give a smaller copy, at most {most:,} pixels") from None
    except UnidentifiedImageError:
        raise Refused("cannot be read as a picture: give a JPEG, PNG or WebP file") from None
    except MemoryError:
        raise Refused("does not fit into memory: give a smaller copy") from None
    except DECODER_ERRORS as broken:
        reason = f"{type(broken).__name__}: {str(broken)[:120]}"
        raise Refused(f"cannot be read as a picture ({reason}): copy or export it again") from None


def check(opened: Image.Image, content: bytes, most_pixels: int) -> None:
    """Refuse what is too large or too long to decode; only the header has been read so far."""
    if opened.width * opened.height > most_pixels:
        raise Image.DecompressionBombError(f"{opened.width} x {opened.height} pixels")
    if opened.format in ("JPEG", "MPO") and jpeg_scans(content) > MOST_SCANS:
        raise Refused(f"is a JPEG with more than {MOST_SCANS} scans: save it again as an ordinary JPEG")


def describe(opened: Image.Image, content: bytes) -> dict[str, Any]:
    """What the header says: the size of the upright picture and entries of EXIF, not checked."""
    if opened.format == "PNG" and "exif" not in opened.info and (late := exif_chunk(content)):
        opened.info["exif"] = late  # Pillow finds it only once all is decoded
    facts: dict[str, Any] = {"size": opened.size}
    with suppress(MemoryError, *DECODER_ERRORS):
        exif = Image.Image.getexif(opened)
        if opened.format == "TIFF":  # some versions of Pillow turn its size
            facts["size"] = exif[WIDTH], exif[HEIGHT]
        if exif.get(ORIENTATION) in range(5, 9):
            facts["size"] = facts["size"][::-1]
        facts["camera"] = plain((exif.get(MAKE), exif.get(MODEL)))
        facts["dates"] = [None, None, plain(exif.get(CHANGED))]
        with suppress(MemoryError, *DECODER_ERRORS):
            facts["dates"][:2] = plain(tuple(map(exif.get_ifd(EXIF).get, (TAKEN, DIGITIZED))))
        with suppress(MemoryError, *DECODER_ERRORS):
            place = exif.get_ifd(GPS)
            facts["latitude"], facts["longitude"] = (plain(tuple(map(place.get, own))) for own in (LATITUDE, LONGITUDE))
    return facts


def plain(value: Any) -> Any:
    """An entry of EXIF in a form that JSON has, and no longer than a sensible one."""
    if isinstance(value, tuple | list):
        return [plain(one) for one in value[:4]]
    if isinstance(value, bytes):
        value = value[:200].decode("latin-1")
    if isinstance(value, str):
        return value[:200]
    return None if value is None else float(value)


def exif_chunk(content: bytes) -> bytes:
    """The EXIF data of a PNG, wherever they are."""
    place = 8
    while place + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"eXIf":
            return content[place + 8 : place + 8 + length]
        place += length + 12
    return b""


def jpeg_scans(content: bytes) -> int:
    """The scans of the first picture in a JPEG file, counted by its markers up to one more than allowed."""
    place, scans = 2, 0
    while scans <= MOST_SCANS and (marker := MARKER.search(content, place)):
        place, kind = marker.end(), content[marker.end() - 1]
        if kind == END_OF_IMAGE:
            break
        scans += kind == START_OF_SCAN
        place += int.from_bytes(content[place : place + 2], "big")
    return scans


def upright(image: Image.Image) -> tuple[Image.Image, list[str]]:
    """Turned as EXIF says; damaged EXIF data are ignored, since the picture itself may be whole."""
    try:
        if image.getexif().get(ORIENTATION) not in range(2, 9):
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
    """Some rows at a time, and where they begin."""
    for top in range(0, image.height, ROWS):
        yield top, image.crop((0, top, image.width, min(top + ROWS, image.height)))


def allow_seconds(seconds: float) -> None:
    """From now on, so much CPU time; after that the system ends this process."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def allow_memory(size: int) -> None:
    """From now on, so many bytes more than this process has; beyond them there is a MemoryError."""
    with suppress(ImportError, OSError, ValueError):  # not Linux, or a lower limit is set already
        import resource

        with open("/proc/self/statm") as pages:
            now = int(pages.read().split()[0]) * resource.getpagesize()
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
    content, image = take.read(body), None
    try:
        image, said = decode(content, request)
    except Refused as why:
        said = {"refused": str(why)}
    except Exception:  # a bug: its traceback is raised on the other side
        said = {"bug": traceback.format_exc()}
    allow_seconds(0)
    told = json.dumps(said).encode()
    give.write(struct.pack("<I", len(told)) + told)
    if image is not None:
        for _, band in bands(image):
            give.write(band.tobytes())
    give.flush()
    return True


def main() -> None:
    """Answer requests until there are no more."""
    for name in ("SIGINT", "SIGTERM"):  # sent to the whole group: the parent decides
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "SIGPROF"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    Image.init()
    threading.Thread(target=end_with_parent, daemon=True).start()
    take, give = sys.stdin.buffer, sys.stdout.buffer
    while answer(take, give):
        pass


if __name__ == "__main__":
    main()
