import json

import pytest
import torch
from picture_cases import TinyBackbone, encoded, photo

from selhn.base.errors import NotFound, SelhnError
from selhn.data import check, load_data
from selhn.pictures import Extractor, import_pictures, import_rows, picture_split


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number in range(12):
        (folder / ("more" if number % 2 else ".") / f"{number}.png").write_bytes(
            encoded(photo(number), "PNG")
        )
    (folder / "notes.txt").write_text("hello")
    (folder / "broken.jpg").write_bytes(b"")
    return folder


def captions_file(folder, split=None):
    rows = [{"image": f"{n}.png", "captions": [f"picture {n}", f"again {n}"]} for n in range(12)]
    for number, row in enumerate(rows):
        row |= {"split": split(number)} if split else {}
    path = folder / "captions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"image": "gone.png", "caption": "x"}]))
    return path


def test_a_folder_becomes_a_data_set(photos, tmp_path):
    report = import_pictures(
        photos,
        tmp_path / "data",
        Extractor(TinyBackbone()),
        captions_file(photos),
        cache=tmp_path / "c",
        quiet=True,
    )
    assert report.used == 12
    assert {name for name, _ in report.refused} == {"broken.jpg", "notes.txt", "gone.png"}
    data = load_data(tmp_path / "data")
    assert check(tmp_path / "data").ok
    assert [split.num_images for split in (data.train, data.dev, data.test)] == [10, 1, 1]
    for split in (data.train, data.dev, data.test):
        for row, name in enumerate(split.image_names):
            number = int(name.rpartition("/")[2].removesuffix(".png"))
            own = [split.captions[text] for text in (split.image_of_text == row).nonzero()[:, 0]]
            assert own == [f"picture {number}", f"again {number}"]
            stored, _ = split.features.gather(torch.tensor([row]))
            assert torch.allclose(stored, Extractor(TinyBackbone())([photo(number)]), atol=2e-3)
    told = json.loads((tmp_path / "data" / "pictures.json").read_text())
    assert told["used"] == 12
    assert told["folder"] == str(photos.resolve())


def test_splits_of_the_captions_file(photos, tmp_path):
    def split(number):
        return ["train", "val", "test"][number % 3]

    captions = captions_file(photos, split)
    import_pictures(
        photos, tmp_path / "d", Extractor(TinyBackbone()), captions, cache=tmp_path / "c", quiet=True
    )
    data = load_data(tmp_path / "d")
    assert sorted(data.dev.image_names) == ["10.png", "4.png", "more/1.png", "more/7.png"]


def test_without_captions_it_can_be_read_and_searched(photos, tmp_path):
    import_pictures(photos, tmp_path / "data", Extractor(TinyBackbone()), cache=tmp_path / "c", quiet=True)
    data = load_data(tmp_path / "data")
    assert data.train.num_texts == 0
    assert data.train.image_of_text.dtype == torch.int64
    split, report = picture_split(photos, Extractor(TinyBackbone()), cache=tmp_path / "c", quiet=True)
    assert (split.num_images, split.num_texts, report.computed) == (12, 0, 0)
    assert split.boxes.shape == (12, 10, 4)


def test_pictures_of_one_content_are_in_one_split(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.png").write_bytes(encoded(photo(number % 3), "PNG"))
    import_pictures(folder, tmp_path / "d", Extractor(TinyBackbone()), cache=tmp_path / "c", quiet=True)
    data = load_data(tmp_path / "d")
    kinds = [
        {int(n.removesuffix(".png")) % 3 for n in split.image_names}
        for split in (data.train, data.dev, data.test)
    ]
    assert sorted(map(len, kinds)) == [1, 1, 1]
    assert set.union(*kinds) == {0, 1, 2}


def test_what_cannot_be_imported(photos, tmp_path):
    extractor, cache = Extractor(TinyBackbone()), tmp_path / "c"
    (tmp_path / "other.csv").write_text("image,caption\nx.jpg,a dog\n")
    with pytest.raises(ValueError, match=r"no picture in .* is named in .*begins with 'x.jpg'"):
        import_pictures(photos, tmp_path / "d", extractor, tmp_path / "other.csv", cache=cache, quiet=True)
    with pytest.raises(ValueError, match="already exists"):
        import_pictures(photos, photos, extractor, cache=cache, quiet=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no pictures"):
        import_pictures(tmp_path / "empty", tmp_path / "d", extractor, cache=cache, quiet=True)
    (tmp_path / "empty" / "a.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"can be read; of the first, a.jpg: this file is empty"):
        import_pictures(tmp_path / "empty", tmp_path / "d", extractor, cache=cache, quiet=True)
    (tmp_path / "empty" / "b.png").write_bytes(encoded(photo(), "PNG"))
    with pytest.raises(ValueError, match="no picture in train and test"):
        import_pictures(tmp_path / "empty", tmp_path / "d", extractor, cache=cache, quiet=True)
    assert not (tmp_path / "d").exists()


def test_a_long_report_is_cut(photos, tmp_path):
    for number in range(30):
        (photos / f"bad{number}.jpg").write_bytes(b"")
    _, report = picture_split(photos, Extractor(TinyBackbone()), cache=tmp_path / "c", quiet=True)
    lines = report.describe("pictures.json").splitlines()
    assert lines[0] == "12 pictures used (12 computed now), 32 files left out"
    assert lines[-1] == "  and 12 more in pictures.json"
    assert len(lines) == 22


def test_rows_of_pictures_and_captions(photos, tmp_path):
    """As bytes, as paths and as pictures; two rows of one picture are one image."""
    paths = sorted(photos.rglob("*.png"))
    kinds = [lambda path: {"bytes": path.read_bytes(), "path": None}, str, lambda path: photo(99)]
    rows = [{"picture": kinds[n % 3](path), "words": [f"picture {n}"]} for n, path in enumerate(paths[:6])]
    splits = {"train": [*rows, {**rows[0], "words": "again"}], "validation": rows[:1], "test": rows[1:2]}
    splits["validation"] = [{"picture": str(paths[7]), "words": ["seven"]}]
    splits["test"] = [{"picture": str(paths[8]), "words": ["eight"]}]
    how = {"image": "picture", "text": "words", "cache": tmp_path / "c", "quiet": True}
    import_rows(splits, tmp_path / "rows", Extractor(TinyBackbone()), **how)
    data = load_data(tmp_path / "rows")
    assert data.name == "rows"
    assert (data.train.num_images, data.train.num_texts) == (5, 7), "the two pictures of Pillow are one"
    assert (list(data.dev.captions), list(data.test.captions)) == (["seven"], ["eight"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "photos", "rows"], (
        "nothing is left behind"
    )
    with pytest.raises(NotFound, match="row 0 has no 'image' and 'words': it has picture, words"):
        import_rows(rows, tmp_path / "d", Extractor(TinyBackbone()), **{**how, "image": "image"})
    with pytest.raises(SelhnError, match="row 0 has a int for a picture"):
        import_rows([{"image": 3, "caption": "x"}], tmp_path / "d", Extractor(TinyBackbone()))
