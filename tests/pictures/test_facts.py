"""What pictures say about themselves: true entries are read, lies are left out, and nothing stops an index."""

import json
import math
import struct
import zlib
from datetime import datetime, timedelta

import pytest
from picture_cases import PARIS, encoded, exif_of, photo
from PIL import ImageFile
from PIL.TiffImagePlugin import IFDRational

from selhn.pictures import decoder, decoding
from selhn.pictures.decoding import decode_picture, header_facts
from selhn.pictures.facts import checked_facts
from selhn.pictures.picture_files import JPEG_HEADER, read_facts
from selhn.pictures.picture_headers import as_json

TRUE = {
    "taken": "2019-06-14 15:03:22",
    "camera": "Apple iPhone 12",
    "width": 40,
    "height": 30,
    "latitude": 48.858222,
    "longitude": 2.294500,
}


def told(**entries):
    """Facts of a JPEG with these entries."""
    content = encoded(photo(), exif=exif_of(**entries).tobytes())
    facts = header_facts(content, "a.jpg")
    assert facts == decode_picture(content, "a.jpg", within=10).facts
    return facts


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 42])
def test_facts_of_every_format(kind, orientation):
    """The same from the header alone as with the pixels; width and height are those of the upright picture."""
    content = encoded(photo(), kind, exif=exif_of(orientation=orientation).tobytes())
    picture = decode_picture(content, "a")
    expected = TRUE if orientation != 6 else {**TRUE, "width": 30, "height": 40}
    assert picture.facts == header_facts(content, "a") == expected
    assert picture.image.size == (expected["width"], expected["height"])


def test_a_picture_that_says_nothing():
    for kind in ("JPEG", "PNG", "GIF", "BMP", "PPM"):
        assert header_facts(encoded(photo(), kind), "a") == {"width": 40, "height": 30}
    assert header_facts(b"no picture", "a") == header_facts(b"", "a") == {}


def test_exif_data_behind_the_pixels_of_a_png():
    whole, exif = encoded(photo(), "PNG"), exif_of(orientation=6).tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    content = whole[:-12] + chunk + whole[-12:]
    picture = decode_picture(content, "a.png")
    assert picture.facts == header_facts(content, "a.png") == {**TRUE, "width": 30, "height": 40}
    assert picture.image.size == (30, 40)


def test_only_the_header_is_read(monkeypatch):
    contents = [encoded(photo(), kind, exif=exif_of().tobytes()) for kind in ("JPEG", "PNG", "WEBP")]
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    monkeypatch.setattr(decoder, "allow_seconds", lambda seconds: None)
    for content in contents:
        images, said = decoder.decode(content, {"only_facts": True, "seconds": 1})
        assert images == []
        assert checked_facts(json.loads(json.dumps(said, default=as_json))["facts"]) == TRUE


def test_the_header_of_a_file(tmp_path):
    """The first bytes of a JPEG are enough, unless its header is longer than anybody expects."""
    short = encoded(photo(), exif=exif_of().tobytes())
    comment = b"\xff\xfe" + struct.pack(">H", 65_002) + b"x" * 65_000
    long = short[:2] + comment * (JPEG_HEADER // 65_000 + 1) + short[2:]
    for content in (short, long, encoded(photo(), "PNG", exif=exif_of().tobytes())):
        (tmp_path / "a.jpg").write_bytes(content)
        assert read_facts(tmp_path / "a.jpg") == TRUE
    assert read_facts(tmp_path / "gone.jpg") == read_facts(tmp_path) == {}


@pytest.mark.parametrize(
    "date",
    [
        "0000:00:00 00:00:00",
        "0001:01:01 00:00:00",
        "0000:06:14 15:03:22",
        "2019:02:30 12:00:00",
        "2019:06:14 25:61:00",
        "1970:01:01 00:00:00",
        "1980:01:01 00:00:00",
        "    :  :     :  :  ",
        "14 June 2019",
        "2019",
        "\u0660" * 19,
        "9" * 5000,
        "",
        pytest.param((datetime.now() + timedelta(days=2)).strftime("%Y:%m:%d %H:%M:%S"), id="in two days"),
    ],
)
def test_dates_that_lie(date):
    assert "taken" not in told(taken=date)
    assert "taken" not in checked_facts({"size": (1, 1), "dates": [date]})


def test_which_date_is_taken():
    assert told(taken="1955:08:01 00:00:00")["taken"] == "1955-08-01 00:00:00", "a scan with its true date"
    assert told(taken="2019-06-14T15:03:22.123+02:00")["taken"] == TRUE["taken"]
    assert told(taken="2019:06:14 15:03:22\0\0")["taken"] == TRUE["taken"]
    changed = "2020:01:02 03:04:05"
    assert told(changed=changed)["taken"] == TRUE["taken"]
    assert told(taken="0000:00:00 00:00:00", changed=changed)["taken"] == "2020-01-02 03:04:05"
    assert "taken" not in told(taken=None, changed=changed, make=None, model=None), "a program changed it"


@pytest.mark.parametrize(
    ("make", "model", "camera"),
    [
        ("NIKON CORPORATION", "NIKON D90", "NIKON D90"),
        ("Canon", "Canon EOS 5D", "Canon EOS 5D"),
        ("  SONY \0\0", "DSC-W55\0junk", "SONY DSC-W55"),
        ("Canon", None, "Canon"),
        (None, "X100\x1b[31m\n\x07evil", "X100 [31m evil"),
        (None, "X100\u202e\u200b", "X100"),
        ("\x01\x02", "\x7f", None),
        ("x" * 5000, "y", "x" * 80),
    ],
)
def test_names_of_cameras(make, model, camera):
    assert checked_facts({"size": (1, 1), "camera": [make, model]}).get("camera") == camera
    if "\u202e" not in str(model):  # EXIF has ASCII only
        assert told(make=make, model=model).get("camera") == camera


@pytest.mark.parametrize(
    "place",
    [
        {**PARIS, 2: (IFDRational(1, 0), IFDRational(0, 1), IFDRational(0, 1))},
        {**PARIS, 2: (IFDRational(0, 0), IFDRational(0, 0), IFDRational(0, 0))},
        {**PARIS, 4: (181.0, 0.0, 0.0)},
        {**PARIS, 4: (180.0, 30.0, 0.0)},
        {**PARIS, 2: (48.0, 99.0, 0.0)},
        {**PARIS, 2: (48.0, 51.0, 4_000_000.0)},
        {**PARIS, 1: "X"},
        {**PARIS, 1: ""},
        {1: "N", 2: (48.0, 51.0, 29.6)},
        {2: (48.0, 51.0, 29.6), 4: (2.0, 17.0, 40.2)},
        {1: "N", 2: (0.0, 0.0, 0.0), 3: "E", 4: (0.0, 0.0, 0.0)},
        {**PARIS, 2: (48.0, 51.0)},
    ],
)
def test_places_that_lie(place):
    assert told(place=place) == {name: value for name, value in TRUE.items() if not name.endswith("itude")}


def test_numbers_that_json_has_and_exif_has_not():
    for part in (math.nan, math.inf, -math.inf, -1.0, None, "48", [48]):
        said = {"size": (1, 1), "latitude": ["N", [part, 0.0, 0.0]], "longitude": ["E", [2.0, 0.0, 0.0]]}
        assert checked_facts(said) == {"width": 1, "height": 1}


def test_the_south_and_the_west():
    place = {1: "S", 2: (33.0, 51.5, IFDRational(0, 0)), 3: "w", 4: (151.0, 12.0, 0.0)}
    facts = told(place=place)
    assert (facts["latitude"], facts["longitude"]) == (-33.858333, -151.2)


def junk(kind):
    """EXIF data that are large or that refer to themselves."""
    if kind == "noise":
        return b"Exif\0\0II*\0" + bytes(range(256)) * 250
    if kind == "circle":  # the entries of EXIF and GPS are those of the first list again
        return b"Exif\0\0II*\0" + struct.pack(
            "<IHHHIIHHIIHHIII", 8, 3, 0x0112, 3, 1, 42, 0x8769, 4, 1, 8, 0x8825, 4, 1, 8, 0
        )
    count, size = 2700, 30_000  # every entry is most of the data: 80 MB from 64 KB
    entries = b"".join(struct.pack("<HHII", 1000 + n, 7, size, 8) for n in range(count))
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, count) + entries + bytes(65_000 - len(entries))


@pytest.mark.parametrize("kind", ["noise", "circle", "overlap"])
def test_junk_costs_nothing_but_the_facts(kind):
    content = encoded(photo(), exif=junk(kind))
    assert header_facts(content, "a.jpg") == {"width": 40, "height": 30}
    assert decode_picture(content, "a.jpg").image.size == (40, 30)


def test_megabytes_that_refer_to_each_other(monkeypatch):
    monkeypatch.setitem(decoding.LIMITS, "memory", 60 * 2**20)
    count, size = 60_000, 3_000_000  # 180 GB if all entries were read
    entries = b"".join(struct.pack("<HHII", n, 7, size, 8) for n in range(count))
    exif = b"II*\0" + struct.pack("<IH", 8, count) + entries + bytes(size)
    whole = encoded(photo(), "PNG")
    chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    content = whole[:33] + chunk + whole[33:]
    assert (
        header_facts(content, "a.png")
        == decode_picture(content, "a.png").facts
        == {"width": 40, "height": 30}
    )
