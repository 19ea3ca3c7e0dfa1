"""Pictures that strangers made: found in a folder, opened within bounds, upright and in RGB."""

import io
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from selhn.base.errors import NotFound, SelhnError

MOST_PIXELS = 50_000_000
MOST_BYTES = 256 * 2**20
# No format that calls another program (EPS), holds documents (PDF) or is decoded to know its size (ICO).
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
# What Pillow's decoders raise for bytes that are not what they should be.
DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, LookupError, ArithmeticError, TypeError, EOFError, struct.error,
    zlib.error,
)  # fmt: skip
SUFFIXES = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm",
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A picture as a model sees it, and what was done to it on the way."""

    image: Image.Image
    """RGB, turned as its EXIF entry says."""
    notes: tuple[str, ...] = ()


def open_picture(path: Path | str, most_pixels: int = MOST_PIXELS) -> Picture:
    """The picture of a file; a SelhnError says why it cannot be opened, whatever the file holds."""
    return decode_picture(read_bytes(Path(path)), str(path), most_pixels)


def read_bytes(path: Path) -> bytes:
    """The content of a file that may be a picture."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}: give the path of a picture")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SelhnError(f"{path} has {size / 2**20:.0f} MiB, at most {MOST_BYTES // 2**20} are read")
    try:
        return path.read_bytes()
    except OSError as error:
        raise SelhnError(f"{path} cannot be read ({error.strerror}): check its rights") from None


def decode_picture(
    content: bytes, name: str, most_pixels: int = MOST_PIXELS, enough: tuple[int, int] | None = None
) -> Picture:
    """The picture in some bytes; `name` is for messages. Too large a size is refused before decoding.

    If a width and height are `enough`, a JPEG is decoded at a half, a quarter or an eighth of its size, which
    is faster, but not smaller than that.
    """
    if not content:
        raise SelhnError(f"{name} is empty: copy it again")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            if opened.width * opened.height > most_pixels:
                raise Image.DecompressionBombError(f"{opened.width} x {opened.height} pixels")
            moves = opened.format != "MPO" and getattr(opened, "is_animated", False)
            notes = ["its first frame is used"] if moves else []
            if opened.mode not in ("RGB", "L"):
                notes.append(f"converted from {opened.mode}")
            opened.seek(0)
            if enough is not None:
                opened.draft(None, enough)
            opened.load()
            image, turned = _upright(opened)
            return Picture(_to_rgb(image), (*notes, *turned))
    except Image.DecompressionBombError as error:
        raise SelhnError(
            f"{name} is too large ({error}): give a smaller copy, at most {most_pixels:,} pixels"
        ) from None
    except UnidentifiedImageError:
        raise SelhnError(f"{name} cannot be read as a picture: give a JPEG, PNG or WebP file") from None
    except MemoryError:
        raise SelhnError(f"{name} does not fit into memory: give a smaller copy") from None
    except DECODER_ERRORS as broken:
        reason = f"{type(broken).__name__}: {str(broken)[:120]}"
        raise SelhnError(f"{name} cannot be read as a picture ({reason}): copy or export it again") from None


@dataclass(frozen=True)
class Found:
    """The files below a folder."""

    folder: Path
    pictures: list[Path]
    """Files whose names end like those of pictures."""
    others: list[Path]
    closed: list[tuple[Path, str]]
    """Folders that could not be listed, and why: what they hold is unknown."""


def find_pictures(folder: Path | str) -> Found:
    """Walk a folder once; hidden files and linked folders are left out."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}: give one that holds pictures")
    pictures: list[Path] = []
    others: list[Path] = []
    closed: list[tuple[Path, str]] = []

    def note(error: OSError) -> None:
        closed.append((Path(str(error.filename)), f"cannot be listed ({error.strerror})"))

    for parent, folders, files in os.walk(folder, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(parent) / name
            if not name.startswith(".") and path.is_file():
                (pictures if path.suffix.lower() in SUFFIXES else others).append(path)
    return Found(folder, sorted(pictures), sorted(others), closed)


def writable(path: Path, root: Path | None = None) -> str:
    """A path, relative to `root` if there is one, in a form that can be written to any file."""
    shown = str(path) if root is None else path.relative_to(root).as_posix()
    return shown.encode("utf-8", "backslashreplace").decode()


def _upright(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Turned as EXIF says; damaged EXIF data are ignored, since the picture itself may be whole."""
    try:
        turned = ImageOps.exif_transpose(image)
    except DECODER_ERRORS:
        return image, ("its EXIF data are damaged and were not used",)
    return turned, () if turned.getexif() == image.getexif() else ("turned as its EXIF data say",)


def _to_rgb(image: Image.Image) -> Image.Image:
    """RGB; transparent parts become white, 16 bits per channel become 8."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float32)
        span = 257.0 if image.mode.startswith("I") else 1.0
        return Image.fromarray(np.nan_to_num(values / span).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return image.convert("RGB")
