import numpy as np
import pytest
from PIL import Image, ImageFont, features

from selhn.cli.answers import BOTTOM, FONTS, GAP, SIDE, TOP, Tile, contact_sheet, font_for, save_picture


def test_rows_of_pictures_that_are_neither_cut_nor_stretched():
    wide, high = Image.new("RGB", (400, 100), "red"), Image.new("RGB", (30, 60), "blue")
    sheet = contact_sheet(
        [("first", [Tile(wide, "1"), Tile(high, "2", framed=True)]), ("second", [Tile(high, "3")])]
    )
    assert sheet.size == (2 * (SIDE + GAP) + GAP, 2 * (TOP + SIDE + BOTTOM))
    pixels = np.array(sheet)
    red, blue, green = (
        (pixels == np.array(colour)).all(2).sum() for colour in ((255, 0, 0), (0, 0, 255), (22, 163, 74))
    )
    assert red == SIDE * SIDE // 4
    assert blue == 2 * SIDE * SIDE // 2
    assert green == (SIDE + 10) * (SIDE // 2 + 10) - SIDE * SIDE // 2


@pytest.mark.skipif(not features.check("freetype2"), reason="needs Pillow with FreeType")
def test_letters_that_the_own_font_lacks(monkeypatch):
    own, others = ImageFont.truetype, {FONTS[1]: ImageFont.load_default(15)}

    def opened(font, *size, **more):
        if font == FONTS[0]:
            raise OSError("there is no such font")
        return others[font] if font in FONTS else own(font, *size, **more)

    monkeypatch.setattr(ImageFont, "truetype", opened)
    assert font_for("dog.jpg", 15) is not others[FONTS[1]]
    assert font_for("schön.jpg", 15) is others[FONTS[1]]
    monkeypatch.setattr("selhn.cli.answers.FONTS", ())
    assert isinstance(font_for("schön.jpg", 15), ImageFont.FreeTypeFont), "boxes are better than nothing"


def test_nothing_found():
    assert contact_sheet([("first", [])]).width > 0


@pytest.mark.parametrize("name", ["sheet.png", "sheet.JPG"])
def test_a_sheet_does_not_go_through_a_link(tmp_path, name):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / name).symlink_to(tmp_path / "mine.txt")
    save_picture(contact_sheet([("first", [])]), tmp_path / name)
    with Image.open(tmp_path / name) as written:
        assert written.format == ("PNG" if name.endswith("png") else "JPEG")
    assert (tmp_path / "mine.txt").read_text() == "mine"
