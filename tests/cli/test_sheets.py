import numpy as np
from PIL import Image

from selhn.cli.search import BOTTOM, GAP, SIDE, TOP, Tile, contact_sheet


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


def test_nothing_found():
    assert contact_sheet([("first", [])]).width > 0
