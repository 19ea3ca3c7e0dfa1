import io
import os

import pytest
from picture_cases import encoded, huge_png, photo, turned_jpeg
from PIL import Image

from selhn.base.errors import NotFound, SelhnError
from selhn.pictures.picture_folders import locate, read_located
from selhn.serve.thumbnails import SIZES, Thumbnails, drawn


@pytest.fixture
def root(tmp_path):
    """A folder, and beside it what nobody may see."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.png").write_bytes(encoded(photo(1), "PNG"))
    (tmp_path / "in" / "deep" / "b.png").write_bytes(encoded(photo(2), "PNG"))
    (tmp_path / "in_secret").mkdir()
    (tmp_path / "in_secret" / "c.png").write_bytes(encoded(photo(3), "PNG"))
    return tmp_path / "in"


def test_files_in_the_folder_are_found_by_their_place_or_their_path(root):
    assert locate([root], "a.png") == root / "a.png"
    assert locate([root], "deep/../deep/b.png") == root / "deep" / "b.png"
    assert locate([root], str(root / "deep" / "b.png")) == root / "deep" / "b.png"
    assert locate([root / "deep", root], "a.png") == root / "a.png"


@pytest.mark.parametrize(
    "name",
    [
        "../in_secret/c.png",
        "deep/../../in_secret/c.png",
        "/etc/passwd",
        "deep",
        "",
        ".",
        "none.png",
        "a\0.png",
        "a" * 5000,
    ],
)
def test_files_outside_are_not(root, name):
    assert locate([root], name) is None
    assert locate([root], str(root.parent / "in_secret" / "c.png")) is None


def test_links_that_lead_outside_are_not_followed(root):
    outside = root.parent / "in_secret"
    (root / "link.png").symlink_to(outside / "c.png")
    (root / "folder").symlink_to(outside)
    (root / "circle").symlink_to(root / "circle")
    (root / "inside.png").symlink_to(root / "deep" / "b.png")
    for name in ("link.png", "folder/c.png", "circle"):
        assert locate([root], name) is None
    assert locate([root], "inside.png") == root / "deep" / "b.png"


def test_what_was_put_in_the_place_of_a_file_is_not_read(root):
    path = locate([root], "a.png")
    path.unlink()
    path.symlink_to(root.parent / "in_secret" / "c.png")
    with pytest.raises(NotFound):
        read_located(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(NotFound):
        read_located(path)


def test_thumbnails_are_small_upright_and_say_nothing_of_where(root):
    (root / "t.jpg").write_bytes(turned_jpeg())
    thumbnails = Thumbnails()
    found = Image.open(io.BytesIO(thumbnails.get(root / "t.jpg", 160)[0]))
    assert found.size == (30, 40), "turned, and never made larger"
    assert not found.getexif()
    assert not {"exif", "icc_profile", "comment"} & set(found.info)
    (root / "large.jpg").write_bytes(encoded(photo(1, (3000, 2000))))
    assert Image.open(io.BytesIO(thumbnails.get(root / "large.jpg", 320)[0])).size == (320, 213)


def test_those_asked_for_last_are_kept_within_bounds(root):
    thumbnails = Thumbnails(most_bytes=4000)
    for number in range(20):
        path = root / f"{number}.png"
        path.write_bytes(encoded(photo(number, (200, 200)), "PNG"))
        made = thumbnails.get(path, 160)
        assert thumbnails.get(path, 160)[0] is made[0]
        assert thumbnails.bytes <= 4000
    assert thumbnails.bytes == sum(len(one) for one in thumbnails._kept.values()) > 0


def test_a_changed_file_is_drawn_anew(root):
    thumbnails = Thumbnails()
    first = thumbnails.get(root / "a.png", 160)
    (root / "a.png").write_bytes(encoded(photo(9), "PNG"))
    os.utime(root / "a.png", ns=(1, 1))
    second = thumbnails.get(root / "a.png", 160)
    assert first[1] != second[1]
    assert first[0] != second[0]


def test_sizes_are_few(root):
    with pytest.raises(SelhnError, match=f"choose {SIZES[0]}, "):
        Thumbnails().get(root / "a.png", 161)


def test_a_picture_of_billions_of_pixels_is_refused():
    with pytest.raises(SelhnError, match="too large"):
        drawn(huge_png(), "bomb.png", 160)
