"""Pictures of phones and cameras: HEIC, AVIF and RAW, whole, damaged, forged, and without the packages they need."""

import struct

import numpy as np
import pytest
from picture_cases import TinyBackbone, dng, encoded, exif_of, heic, photo, stand_in, with_size
from PIL import Image

from selhn.base.errors import MissingExtra, SelhnError
from selhn.cli.data import data_import
from selhn.pictures import Extractor, index_pictures, picture_files
from selhn.pictures.decoder_processes import end_decoders
from selhn.pictures.decoding import decode_picture, header_facts
from selhn.pictures.picture_files import find_pictures

pytest.importorskip("pillow_heif", reason="HEIC files are written by it")

TRUE = {
    **{"taken": "2019-06-14 15:03:22", "camera": "Apple iPhone 12", "width": 64, "height": 48},
    **{"latitude": 48.858222, "longitude": 2.2945},
}


def wide(seed=1, size=(64, 48)):
    """A picture whose halves differ, so that one can see how it was turned."""
    image = photo(seed, size)
    image.paste((250, 10, 10), (0, 0, size[0] // 2, size[1] // 3))
    return image


def distance(one, other):
    assert one.size == other.size
    return np.abs(np.asarray(one, dtype=int) - np.asarray(other)).mean()


@pytest.mark.parametrize("kind", ["HEIF", "AVIF", "DNG"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_each_is_upright_and_turned_once(kind, orientation):
    """A HEIC is turned by its own transformation, an AVIF likewise, a preview by the entry of its RAW file."""
    exif = exif_of(orientation=orientation).tobytes()
    content = {
        "HEIF": lambda: heic(wide(), exif, quality=90),
        "AVIF": lambda: encoded(wide(), "AVIF", exif=exif, quality=95),
        "DNG": lambda: dng(encoded(wide(), quality=95), orientation),
    }[kind]()
    picture = decode_picture(content, "a")
    turns = {1: 0, 3: 180, 6: 270, 8: 90}
    upright = wide().rotate(turns[orientation], expand=True)
    assert distance(picture.image, upright) < 8
    assert picture.format == kind
    assert (
        picture.facts
        == header_facts(content, "a")
        == {**TRUE, "width": upright.width, "height": upright.height}
    )
    assert ("its preview is used" in picture.notes) == (kind == "DNG")


def test_the_main_picture_of_a_heic_with_several():
    pictures = [wide(1), wide(2, (80, 48)), wide(3, (48, 64))]
    content = heic(pictures[0], exif_of().tobytes(), pictures[1:], primary=1, quality=90)
    picture = decode_picture(content, "a.heic")
    assert distance(picture.image, pictures[1]) < 8
    assert picture.notes == ("its main picture is used",)
    assert picture.facts == header_facts(content, "a.heic") == {**TRUE, "width": 80}


def test_bits_and_transparency():
    clear = decode_picture(heic(Image.new("RGBA", (64, 64), (255, 0, 0, 0))), "a.heic")
    assert clear.notes == ("converted from RGBA",)
    assert np.asarray(clear.image).min() > 250
    assert decode_picture(heic(wide().convert("L")), "a.heic").image.mode == "RGB"


def test_a_preview_that_is_no_jpeg():
    for orientation, turn in ((1, 0), (3, 180), (6, 270), (8, 90)):
        picture = decode_picture(dng(bitmap=wide(), orientation=orientation), "a.dng")
        assert distance(picture.image, wide().rotate(turn, expand=True)) == 0
        assert picture.facts["width"] == picture.image.width


def test_a_large_preview_is_read_at_a_part_of_its_size():
    """With the same pixels, in less time: most of them would be thrown away."""
    image = wide(1, (1600, 1200))
    small = decode_picture(dng(encoded(image, quality=95)), "a.dng", resized=(80, 60))
    assert distance(small.image, image.resize((80, 60), Image.Resampling.BICUBIC)) < 2
    assert small.notes == ("its preview is used",)
    assert decode_picture(dng(encoded(image)), "a.dng").image.size == (1600, 1200)


def damaged(content, number=12):
    """Cut off at several places."""
    return [content[: len(content) * part // number] for part in range(1, number)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (with_size(heic(wide(size=(64, 64))), 30_000, 30_000), r"is too large \(30000 x 30000 pixels\)"),
        (with_size(encoded(wide(), "AVIF"), 30_000, 30_000), r"is too large \(30000 x 30000 pixels\)"),
        (with_size(encoded(wide(), "AVIF"), 8_000, 8_000), r"is too large \(8000 x 8000 pixels\)"),
        (with_size(heic(wide(size=(640, 640))), 64, 64), "cannot be read as a picture"),
        (dng(), "is a RAW picture without a preview that can be read: export it as a JPEG"),
        (dng(encoded(wide())[:-90]), "cannot be read as a picture"),
        (b"FUJIFILMCCD-RAW" + bytes(500), "cannot be read as a RAW picture"),
        (heic()[:40], r"cannot be read as a picture \(its header is damaged\)"),
        *[(content, "cannot be read as a picture") for content in damaged(heic(wide()))],
        *[(content, "cannot be read as a picture") for content in damaged(encoded(wide(), "AVIF"))],
    ],
)
def test_what_is_damaged_or_forged_gets_one_sentence(content, reason):
    with pytest.raises(SelhnError, match=reason) as caught:
        decode_picture(content, "a.heic")
    said = str(caught.value)
    assert said.startswith("a.heic ")
    assert "\n" not in said
    assert "Error" not in said, "the name of an exception is not a word for people"
    assert len(said) < 130
    assert said.count("(") == said.count(")")


def test_a_tiff_stays_a_tiff():
    """Whatever is built like RAW data but is a picture itself is read as before."""
    for image in (wide(), wide().convert("L")):
        assert decode_picture(encoded(image, "TIFF"), "a.tif").format == "TIFF"


def test_a_large_jpeg_is_read_at_a_part_of_its_size():
    content = encoded(photo(1, (1_001, 700)))
    picture = decode_picture(content, "a.jpg", 500_000)
    assert picture.image.size == (501, 350)
    assert picture.notes == ("read at 1/2 of its width and height",)
    assert picture.facts == {"width": 1_001, "height": 700}
    assert decode_picture(content, "a.jpg", 500_000, resized=(26, 24)).image.size == (26, 24)
    assert decode_picture(content, "a.jpg", 500_000, within=160).image.size == (160, 112)
    assert decode_picture(content, "a.jpg", 11_000).image.size == (126, 88)
    with pytest.raises(SelhnError, match=r"is too large \(1001 x 700 pixels\)"):
        decode_picture(content, "a.jpg", 10_000)  # an eighth is not enough


def test_the_largest_jpegs():
    """Up to 64 times as many pixels as of other pictures; more are refused by the header."""
    content = encoded(photo())
    at = content.index(b"\xff\xc0") + 5
    more, most = (
        content[:at] + struct.pack(">HH", side, side) + content[at + 4 :] for side in (14_000, 60_000)
    )
    assert decode_picture(more, "a.jpg", within=160).image.size == (160, 160)
    with pytest.raises(SelhnError, match=r"is too large \(60000 x 60000 pixels\)"):
        decode_picture(most, "a.jpg")


@pytest.fixture
def without_packages(tmp_path, monkeypatch):
    """As if neither pi-heif nor rawpy were installed, here and in the processes that decode."""
    (tmp_path / "none").mkdir()
    for name in ("pi_heif", "rawpy"):
        (tmp_path / "none" / f"{name}.py").write_text(f"raise ImportError('No module named {name}')")
    monkeypatch.syspath_prepend(tmp_path / "none")
    end_decoders()
    monkeypatch.setattr(picture_files, "find_spec", lambda name: None)
    yield monkeypatch
    end_decoders()


def test_without_a_package_the_sentence_says_what_to_install(without_packages):
    for content, package in ((heic(), "pi-heif"), (dng(encoded(wide())), "rawpy")):
        with pytest.raises(MissingExtra, match=f"a.x is a .* picture, which needs .*: pip install {package}"):
            decode_picture(content, "a.x")
    assert decode_picture(encoded(photo(), "AVIF"), "a.avif").image.size == (40, 30)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One of each, beside what is not followed."""
    from pictures.test_library import small_model

    stand_in(small_model, lambda: Extractor(TinyBackbone()), monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "Pictures"
    (place / ".trash").mkdir(parents=True)
    (place / ".trash" / "gone.jpg").write_bytes(encoded(photo(4)))
    (tmp_path / "elsewhere").mkdir()
    for name in ("one", "two"):
        (place / name).symlink_to(tmp_path / "elsewhere")
    (place / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (place / "a.HEIC").write_bytes(heic(photo(1)))
    (place / "b.dng").write_bytes(dng(encoded(photo(2))))
    (place / "c.avif").write_bytes(encoded(photo(3), "AVIF"))
    (place / "notes.txt").write_text("x")
    return place


def test_a_folder_of_a_phone(folder, tmp_path, monkeypatch, request):
    """Everything is indexed; without the packages their files are counted, and what is in the index stays there."""
    done = index_pictures(folder, tmp_path / "i", quiet=True)
    assert (done.added, done.report.refused) == (3, [])
    said = str(done)
    assert "not followed: 1 broken link, 1 hidden folder, 2 linked folders" in said
    assert "not pictures, by extension: 1 .txt" in said
    request.getfixturevalue("without_packages")
    again = index_pictures(folder, tmp_path / "i", quiet=True)
    assert (again.added, again.changed, again.removed, len(again.index)) == (0, 0, 0, 3)
    assert "need a package: 1 .heic (pip install pi-heif), 1 .dng (pip install rawpy)" in str(again)
    (folder / "c.avif").unlink()
    with pytest.raises(MissingExtra, match="pip install pi-heif rawpy"):
        index_pictures(folder, tmp_path / "i", quiet=True)
    with pytest.raises(MissingExtra, match="pip install pi-heif rawpy"):
        data_import(str(folder), tmp_path / "data")
    gone = index_pictures(folder, tmp_path / "i", quiet=True, remove_missing=True)
    assert (gone.removed, len(gone.index)) == (1, 2), "only what is not there"


def test_links_and_hidden_folders_are_counted(folder):
    assert find_pictures(folder).skipped == {"broken links": 1, "hidden folders": 1, "linked folders": 2}
