import json

import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import import_data, load_data
from selhn.data.formats import tsv as tsv_module


def test_imported_in_the_order_of_the_captions(tsv, tmp_path):
    folder, regions = tsv
    data = load_data(import_data(folder, tmp_path / "native"))
    assert data.train.image_names == ["100.jpg", "102.jpg", "104.jpg"]
    found, mask = data.train.features.gather(torch.arange(3))
    assert mask.sum(1).tolist() == [1, 3, 2]
    for name, image, there in zip(data.train.image_names, found, mask):
        np.testing.assert_array_equal(image[there], regions[name.removesuffix(".jpg")])
    np.testing.assert_allclose(data.train.boxes[1, 2], [0.1, 0.1, 1, 1], rtol=1e-6)
    assert data.dev.num_texts == 5


def test_fields_past_the_limit_of_the_csv_module(tsv, tsv_line, tmp_path):
    folder, _ = tsv
    wide = np.random.default_rng(0).standard_normal((40, 1024)).astype(np.float32)
    lines = [tsv_line(str(100 + n), wide, np.zeros((40, 4))) for n in range(7)]
    (folder / "boxes36.tsv").write_text(
        "image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\n" + "\n".join(lines)
    )
    data = load_data(import_data(folder, tmp_path / "native", precision="float16"))
    assert data.feature_dim == 1024
    np.testing.assert_array_equal(data.test.features.gather(torch.arange(1))[0][0], wide.astype(np.float16))


def test_several_files_coco_ids_and_python_3_bytes(tsv, tsv_line, tmp_path):
    folder, regions = tsv
    path = folder / "dataset_flickr30k.json"
    content = json.loads(path.read_text())
    for n, image in enumerate(content["images"]):
        image.update(cocoid=1000 + n, filename=f"COCO_{n}.jpg")
    path.write_text(json.dumps(content))
    lines = [
        tsv_line(f"{1000 + n}", array, [[0, 0, 1, 1]] * len(array)).split("\t")
        for n, array in enumerate(regions.values())
    ]
    written = ["\t".join([*fields[:4], f"b'{fields[4]}'", f"b'{fields[5]}'"]) for fields in lines]
    (folder / "boxes36.tsv").unlink()
    (folder / "part.tsv.0").write_text("\n".join(written[:4]) + "\n")
    (folder / "part.tsv.1").write_text("\n".join(written[3:]) + "\n")
    data = load_data(import_data(folder, tmp_path / "native"))
    np.testing.assert_array_equal(data.test.features.gather(torch.tensor([1]))[0][0], regions["105"])


def test_it_is_no_source_to_train_from(tsv):
    folder, _ = tsv
    with pytest.raises(SelhnError, match="selhn data import"):
        load_data(folder)


def replace(number, **fields):
    def harm(folder):
        path = folder / "boxes36.tsv"
        lines = path.read_text().split("\n")
        parts = dict(zip(tsv_module.FIELDS, lines[number].rstrip("\r").split("\t")))
        lines[number] = "\t".join((parts | fields).values())
        path.write_text("\n".join(lines))

    return harm


def cut_off(folder):
    path = folder / "boxes36.tsv"
    path.write_text(path.read_text()[:-10])


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (replace(2, num_boxes="two"), "line 3.*not a number"),
        (replace(2, num_boxes="9"), "9 boxes"),
        (replace(2, num_boxes="0", boxes=""), "0 boxes"),
        (replace(2, image_w="0"), "size"),
        (replace(2, boxes="%%%"), "boxes is not"),
        (replace(2, features="AAA="), "features is not"),
        (replace(2, features="AAAAAAAAAAAAAAAA"), "3 numbers"),
        (replace(2, features="AAAAAAAAAAA="), "1 wide"),
        (replace(2, image_id="77"), "104.jpg"),
        (cut_off, "line 7"),
        (lambda folder: (folder / "boxes36.tsv").write_text(""), "no image"),
        (lambda folder: (folder / "boxes36.tsv").write_text("one\ttwo\n"), "2 fields"),
    ],
)
def test_what_is_wrong_is_said(tsv, tmp_path, harm, sentence):
    folder, _ = tsv
    harm(folder)
    with pytest.raises(SelhnError, match=sentence):
        import_data(folder, tmp_path / "native")
    assert not (tmp_path / "native").exists()


def test_an_endless_line_is_no_tsv(tsv, tmp_path, monkeypatch):
    monkeypatch.setattr(tsv_module, "MAX_LINE_BYTES", 20)
    with pytest.raises(SelhnError):
        import_data(tsv[0], tmp_path / "native")
