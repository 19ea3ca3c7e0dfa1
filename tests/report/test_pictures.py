import base64
import io
import json

import pytest
from picture_cases import TinyBackbone, encoded, photo
from PIL import Image

from selhn.base.errors import SelhnWarning
from selhn.data import load_data, write_native
from selhn.pictures import Extractor, import_pictures
from selhn.report.page import SIDE, data_address, imported_from, shown_picture


def decoded(address):
    head, _, content = address.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_a_scene_is_drawn():
    split = load_data("world", images=100).test
    picture = shown_picture(split)
    assert decoded(picture(3)).size == (SIDE, SIDE)
    assert len(picture(3)) < 20_000
    assert picture(3) is picture(3), "once"


def test_pictures_are_shrunk_and_keep_their_shape():
    assert decoded(data_address(photo(size=(1000, 500)))).size == (SIDE, SIDE // 2)
    assert decoded(data_address(photo(size=(40, 30)))).size == (40, 30)


def test_features_alone_have_no_picture(tmp_path):
    write_native(load_data("world", images=100), tmp_path / "data")
    assert shown_picture(load_data(tmp_path / "data").test)(0) is None


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.jpg").write_bytes(encoded(photo(number)))
    import_pictures(
        folder, tmp_path / "data", Extractor(TinyBackbone(), cells=2), quiet=True, cache=tmp_path / "cache"
    )
    return tmp_path


def test_files_of_a_folder(photos):
    assert imported_from(str(photos / "data")) == photos / "photos"
    split = load_data(photos / "data").test
    picture = shown_picture(split, photos / "photos")
    assert decoded(picture(0)).size == (40, 30)
    (photos / "photos" / split.image_names[0]).write_bytes(b"broken")
    assert shown_picture(split, photos / "photos")(0) is None
    (photos / "photos" / split.image_names[0]).unlink()
    assert shown_picture(split, photos / "photos")(0) is None


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/hostname", "no\0name", "x" * 5000])
def test_a_name_does_not_lead_out_of_the_folder(photos, name):
    (photos / "secret.jpg").write_bytes(encoded(photo()))
    (photos / "data" / "test_images.jsonl").write_text(
        "".join(json.dumps({"name": name}) + "\n" for _ in load_data(photos / "data").test.image_names)
    )
    split = load_data(photos / "data").test
    assert split.image_names[0] == name
    assert shown_picture(split, photos / "photos")(0) is None


def test_where_pictures_were(photos, tmp_path):
    assert imported_from("world") is None
    told = photos / "data" / "pictures.json"
    whole = told.read_text()
    for content in ('{"folder": 3}', "{}"):
        told.write_text(content)
        assert imported_from(str(photos / "data")) is None
    for content in (
        json.dumps({"folder": str(photos / "photos")}),
        '{"folder": "/not/there"}',
    ):  # from elsewhere
        told.write_text(content)
        with pytest.warns(SelhnWarning, match="--pictures"):
            assert imported_from(str(photos / "data")) is None
    told.write_text(whole)
    assert imported_from(str(photos / "data")) == photos / "photos"
    (photos / "data").rename(photos / "moved")
    with pytest.warns(SelhnWarning):
        assert imported_from(str(photos / "moved")) is None
