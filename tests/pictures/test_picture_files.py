import io

import numpy as np
import pytest
from picture_cases import animated_gif, encoded, huge_png, mutations, originals, photo, shut_off, turned_jpeg
from PIL import Image

from selhn.base.errors import NotFound
from selhn.pictures.decoding import decode_picture
from selhn.pictures.picture_files import find_pictures, open_picture


def test_what_was_saved_is_what_is_seen():
    assert np.array_equal(decode_picture(encoded(photo(3), "PNG"), "a.png").image, photo(3))


@pytest.mark.parametrize("content", originals())
def test_every_kind_becomes_rgb(content):
    picture = decode_picture(content, "a")
    assert picture.image.mode == "RGB"
    assert sorted(picture.image.size) == [30, 40]


def test_exif_turns_a_picture():
    picture = decode_picture(turned_jpeg(6), "a.jpg")
    assert picture.notes == ("turned as its EXIF data say",)
    upright = photo().transpose(Image.Transpose.ROTATE_270)
    assert picture.image.size == upright.size
    assert np.abs(np.asarray(picture.image, dtype=int) - np.asarray(upright)).mean() < 4


def test_the_first_frame_of_an_animation():
    picture = decode_picture(animated_gif(), "a.gif")
    assert "its first frame is used" in picture.notes
    assert np.abs(np.asarray(picture.image, dtype=int) - np.asarray(photo(1))).mean() < 12


def test_cmyk_keeps_its_colours():
    picture = decode_picture(encoded(photo(4, mode="CMYK"), quality=95), "a.jpg")
    assert picture.notes == ("converted from CMYK",)
    assert np.abs(np.asarray(picture.image, dtype=int) - np.asarray(photo(4))).mean() < 4


def test_sixteen_bits_become_eight_and_transparent_is_white():
    deep = np.linspace(0, 65535, 1200).astype(np.uint16).reshape(30, 40)
    seen = np.asarray(decode_picture(encoded(Image.fromarray(deep), "PNG"), "a.png").image)[..., 0]
    assert np.abs(seen.astype(int) - deep // 257).max() <= 1
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert np.asarray(decode_picture(encoded(clear, "PNG"), "a.png").image).min() == 255


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "a.jpg is empty"),
        (b"dear diary", "a.jpg cannot be read as a picture: give"),
        (huge_png(), "a.jpg is too large .*at most 50,000,000 pixels"),
        (huge_png(10_000, 6_000), "a.jpg is too large .10000 x 6000 pixels"),
        (encoded(photo())[:400], r"a.jpg cannot be read as a picture \(Truncated File Read\): copy"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a.jpg cannot be read as a picture: give"),
    ],
)
def test_what_is_no_picture(content, reason):
    with pytest.raises(ValueError, match=reason):
        decode_picture(content, "a.jpg")


def answers(contents):
    """How many were read; anything but a picture or a ValueError fails the test."""
    read, number = 0, -1
    sentences: list[tuple[int, str]] = []
    for number, content in enumerate(contents):
        try:
            image = decode_picture(content, f"{number}.jpg", most_pixels=100_000).image
        except ValueError as error:
            sentences.append((number, str(error)))
        else:
            read += image.mode == "RGB" and image.width * image.height <= 100_000
    assert all(sentence.startswith(f"{number}.jpg ") for number, sentence in sentences)
    assert read + len(sentences) == number + 1
    return read


def test_three_hundred_damaged_pictures():
    assert 10 < answers(mutations(300)) < 290  # some damage is harmless, some is not


@pytest.mark.slow
def test_two_thousand_damaged_pictures():
    assert 100 < answers(mutations(2000, seed=1)) < 1900


def test_files_are_found_below_a_folder(tmp_path):
    (tmp_path / "b" / ".hidden").mkdir(parents=True)
    for name in ("z.JPG", "b/a.png", "b/notes.txt", ".x.jpg", "b/.hidden/c.jpg"):
        (tmp_path / name).write_bytes(encoded(photo()))
    found = find_pictures(tmp_path)
    pictures, others, closed = found.pictures, found.others, found.closed
    assert closed == []
    assert [path.relative_to(tmp_path).as_posix() for path in pictures] == ["b/a.png", "z.JPG"]
    assert [path.name for path in others] == ["notes.txt"]
    assert open_picture(tmp_path / "z.JPG").image.size == (40, 30)
    with pytest.raises(ValueError, match="no folder"):
        find_pictures(tmp_path / "nowhere")
    with pytest.raises(NotFound):
        open_picture(tmp_path / "b")


def test_a_picture_is_reduced_while_it_is_decoded():
    content = encoded(photo(1, (1600, 1200)))
    assert decode_picture(content, "a.jpg", within=200).image.size == (200, 150)
    assert decode_picture(encoded(photo(1, (1200, 1600)), "PNG"), "a.png", within=300).image.size == (
        225,
        300,
    )
    with pytest.raises(ValueError, match="too large"):
        decode_picture(encoded(photo(1, (1600, 1200)), "PNG"), "a.png", 10**6, within=200)


@pytest.mark.parametrize(
    ("size", "resized", "divided"),
    [
        ((1600, 1200), (26, 24), 8),
        ((2080, 2080), (260, 260), 4),
        ((1039, 1600), (260, 260), 1),
        ((2080, 2080), (260, 521), 1),
    ],
)
def test_a_jpeg_that_is_resized_is_reduced_while_both_sides_stay_twice_as_long(size, resized, divided):
    picture = photo(1, size)
    whole = picture.resize(resized, Image.Resampling.BICUBIC)
    for kind in ("JPEG", "PNG"):
        content = encoded(picture, kind)
        found = decode_picture(content, "a picture", resized=resized)
        assert found.image.size == resized
        assert found.notes == ()
        assert found.facts == {"width": size[0], "height": size[1]}
        with Image.open(io.BytesIO(content)) as opened:
            opened.draft(None, (size[0] // divided, size[1] // divided))
            wanted = opened.resize(resized, Image.Resampling.BICUBIC)
        assert np.array_equal(found.image, wanted)
        assert np.abs(np.asarray(found.image, float) - np.asarray(whole)).mean() < 4


def test_a_picture_that_is_decoded_before_its_size_is_known_is_none():
    with pytest.raises(ValueError, match="cannot be read as a picture"):
        decode_picture(encoded(photo(), "ICO"), "an icon")


def test_a_folder_that_cannot_be_looked_into_is_told(tmp_path, monkeypatch):
    (tmp_path / "shut").mkdir()
    for name in ("a.png", "shut/b.png"):
        (tmp_path / name).write_bytes(encoded(photo()))
    shut_off(monkeypatch, tmp_path / "shut")
    found = find_pictures(tmp_path)
    assert [path.name for path in found.pictures] == ["a.png"]
    assert found.closed == [(tmp_path / "shut", "cannot be listed (Permission denied)")]
