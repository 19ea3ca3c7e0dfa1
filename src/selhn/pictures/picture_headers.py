"""What the first bytes of a picture file say: its kind, its size, EXIF, and where a camera's raw data have a preview.

Used by the program of a decoder only, which imports this file without the package around it.
"""

import io
import re
import struct
import textwrap
import zlib
from contextlib import suppress
from typing import Any

from PIL import Image

# Not formats that call another program (EPS), hold documents (PDF) or must be decoded to know the size (ICO).
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
HEIF = re.compile(rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)", re.DOTALL)
STARTS = re.compile(rb"....ftyp(avi[fs]|hei|hev|mif1|msf1)|II\*\0|MM\0\*|\xff\xd8\xff|\x89PNG", re.DOTALL)
"""First bytes of files that are surely meant to be pictures."""
SIZE = re.compile(rb"ispe....(.{4})(.{4})", re.DOTALL)
"""Width and height in AVIF and HEIF."""
MOST_REDUCED = 8
"""A JPEG can be decoded at 1/2, 1/4 or 1/8 of its width and height."""
MOST_SCANS = 100
"""Most scans (passes over the picture) of a JPEG. Encoders write about ten; libtiff has this limit."""
# What the decoders raise for bytes that are not what they should be.
DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, LookupError, ArithmeticError, TypeError, EOFError, RuntimeError,
    struct.error, zlib.error,
)  # fmt: skip
ORIENTATION, MAKE, MODEL, CHANGED = 0x0112, 0x010F, 0x0110, 0x0132
EXIF, TAKEN, DIGITIZED = 0x8769, 0x9003, 0x9004
GPS = 0x8825
WIDTH, HEIGHT, KIND, PHOTOMETRIC, PARTS, DNG_VERSION = 0x0100, 0x0101, 0x00FE, 0x0106, 0x014A, 0xC612
SENSOR = (32803, 34892)
"""Values of PHOTOMETRIC: what a sensor saw, not yet a picture."""
RAW_STARTS = {
    kind: re.compile(start, re.DOTALL)
    for kind, start in {
        **{"CR2": rb"(II\*\0|MM\0\*)....CR", "CR3": rb"....ftypcrx ", "RAF": rb"FUJIFILMCCD-RAW"},
        **{"ORF": rb"IIR[OS]|MMOR", "RW2": rb"IIU\0"},
    }.items()
}
TURNS = {3: Image.Transpose.ROTATE_180, 5: Image.Transpose.ROTATE_90, 6: Image.Transpose.ROTATE_270}
"""LibRaw's codes for how a picture has to be turned."""
# A marker that libjpeg acts on: not a stuffed zero, a restart, or one without a meaning between segments.
MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
END_OF_IMAGE, START_OF_SCAN = 0xD9, 0xDA


class Refused(Exception):
    """Why a picture is not decoded, in words that follow its name."""


class Missing(Refused):
    """A package that is not installed is needed."""

    def __init__(self, kind: str, package: str):
        super().__init__(f"is a {kind}, which needs a package that is not installed: pip install {package}")


def reason(error: Exception) -> str:
    """The first words of a decoder's error, as part of a sentence."""
    said = error.args[0] if error.args and isinstance(error.args[0], str | bytes) else str(error)
    said = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    words = ": ".join(said.split("(")[0].split(": ")[:2])
    return textwrap.shorten(words, 60, placeholder=" ...") if re.search("[a-z]", words) else "it is damaged"


def open_image(content: bytes) -> Image.Image:
    """The header of a picture, read by Pillow, or by pi-heif if that is needed and installed."""
    if HEIF.match(content) and "HEIF" not in Image.OPEN:
        with suppress(ImportError):
            import pi_heif

            pi_heif.register_heif_opener(
                decode_threads=1, thumbnails=False, depth_images=False, aux_images=False
            )
    return Image.open(io.BytesIO(content), formats=[kind for kind in FORMATS if kind in Image.OPEN])


def why_not(content: bytes, most_pixels: int) -> Refused:
    """Why the header of some bytes could not be read."""
    if HEIF.match(content) and "HEIF" not in Image.OPEN:
        return Missing("HEIC picture", "pi-heif")
    for found in SIZE.finditer(content, 0, 2**16) if content[4:8] == b"ftyp" else ():
        width, height = (int.from_bytes(side, "big") for side in found.groups())
        if width * height > most_pixels:  # so large that the library does not even open it
            return too_large(width, height, most_pixels)
    if STARTS.match(content):
        return Refused("cannot be read as a picture (its header is damaged): copy or export it again")
    return Refused("cannot be read as a picture: give a JPEG, PNG, WebP or HEIC file")


def too_large(width: int, height: int, most_pixels: int) -> Refused:
    """The refusal of a picture with too many pixels."""
    how = f"give a smaller copy, at most {most_pixels:,} pixels"
    return Refused(f"is too large ({width} x {height} pixels): {how}")


def check(opened: Image.Image, content: bytes, most_pixels: int) -> int:
    """Refuse what is too large or too long to decode; only the header has been read so far.

    Returns by how much width and height have to be divided while it is decoded: 1 if it is small enough.
    """
    is_jpeg, reduced = opened.format in ("JPEG", "MPO"), 1
    while opened.width * opened.height > most_pixels * reduced**2:
        if not is_jpeg or reduced == MOST_REDUCED:
            raise too_large(*opened.size, most_pixels)
        reduced *= 2
    if is_jpeg and jpeg_scans(content) > MOST_SCANS:
        raise Refused(f"is a JPEG with more than {MOST_SCANS} scans: save it again as an ordinary JPEG")
    return reduced


def raw_kind(content: bytes) -> str:
    """The format of a camera's raw data, by their first bytes and entries; empty if they are something else."""
    if content[:4] not in (b"II*\0", b"MM\0*") or content[8:10] == b"CR":
        return next((kind for kind, start in RAW_STARTS.items() if start.match(content)), "")
    with suppress(*DECODER_ERRORS):
        first = tiff_entries(content)
        # NEF and ARW begin with a small picture, and keep the rest in parts below it.
        small = first.get(KIND) == 1 and PARTS in first and MAKE in first
        return "DNG" if small or DNG_VERSION in first or first.get(PHOTOMETRIC) in SENSOR else ""
    return ""


def tiff_entries(content: bytes) -> Image.Exif:
    """The first entries of something built like a TIFF file."""
    exif = Image.Exif()
    exif.load_from_fp(io.BytesIO(content))
    return exif


def preview(content: bytes) -> tuple[bytes, dict[str, Any]]:
    """The picture that a camera put into its raw data, as a file of its own, and what the data say."""
    try:
        import numpy as np
        import rawpy
    except ImportError:
        raise Missing("RAW picture", "rawpy") from None
    try:
        with rawpy.imread(io.BytesIO(content)) as raw:
            sizes, picture = raw.sizes, raw.extract_thumb()
    except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
        raise Refused("is a RAW picture without a preview that can be read: export it as a JPEG") from None
    except rawpy.LibRawError as error:
        raise Refused(f"cannot be read as a RAW picture ({reason(error)}): copy or export it again") from None
    facts: dict[str, Any] = {"size": (sizes.width, sizes.height)[:: -1 if sizes.flip in (5, 6) else 1]}
    with suppress(MemoryError, *DECODER_ERRORS):  # other formats have it in their preview
        facts = {**entries(tiff_entries(content)), **facts}
    if picture.format == rawpy.ThumbFormat.JPEG:  # it says itself how it has to be turned
        return bytes(picture.data), facts
    image, file = Image.fromarray(np.asarray(picture.data)), io.BytesIO()
    (image.transpose(TURNS[sizes.flip]) if sizes.flip in TURNS else image).save(file, "PPM")
    return file.getvalue(), facts


def describe(opened: Image.Image, content: bytes) -> dict[str, Any]:
    """What the header says: the size of the upright picture and entries of EXIF, not checked."""
    if opened.format == "PNG" and "exif" not in opened.info and (late := exif_chunk(content)):
        opened.info["exif"] = late  # Pillow finds it only after decoding
    facts: dict[str, Any] = {"size": opened.size}
    with suppress(MemoryError, *DECODER_ERRORS):
        exif = Image.Image.getexif(opened)
        if opened.format == "TIFF":  # some versions of Pillow turn its size
            facts["size"] = exif[WIDTH], exif[HEIGHT]
        if exif.get(ORIENTATION) in range(5, 9):
            facts["size"] = facts["size"][::-1]
        facts |= entries(exif)
    return facts


def entries(exif: Image.Exif) -> dict[str, Any]:
    """The entries of EXIF that are facts about a picture."""
    found: dict[str, Any] = {
        "camera": (exif.get(MAKE), exif.get(MODEL)),
        "dates": [None, None, exif.get(CHANGED)],
    }
    with suppress(MemoryError, *DECODER_ERRORS):
        found["dates"][:2] = map(exif.get_ifd(EXIF).get, (TAKEN, DIGITIZED))
    with suppress(MemoryError, *DECODER_ERRORS):
        place = exif.get_ifd(GPS)
        found |= {"latitude": (place.get(1), place.get(2)), "longitude": (place.get(3), place.get(4))}
    return found


def as_json(value: Any) -> float | str:
    """An EXIF entry of a type that JSON lacks, as a number or text."""
    return value.decode("latin-1") if isinstance(value, bytes) else float(value)


def exif_chunk(content: bytes) -> bytes:
    """The EXIF data of a PNG, wherever they are in the file."""
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
