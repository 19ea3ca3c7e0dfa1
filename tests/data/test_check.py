import json
import random

import numpy as np
import pytest

from selhn.data import Report, check, import_data
from selhn.data.formats import precomp as precomp_module

RNG = np.random.default_rng(0)


def only_problem(folder, *parts):
    report = check(folder)
    assert len(report.problems) == 1, report
    assert all(part in report.problems[0] for part in parts), report
    assert not report.ok


def test_a_good_folder_in_words(precomp, monkeypatch):
    monkeypatch.setattr(precomp_module, "DEV_IMAGES", 2)
    report = check(precomp.folder)
    assert isinstance(report, Report)
    assert report.ok
    assert not report.warnings
    words = str(report)
    for part in (
        "precomp format",
        "train_ims.npy: 6 rows, float32, shape (3, 4) each",
        "train_ims.npy: one row per image, 5 consecutive captions each",
        "dev_ims.npy: one row per caption: each image is there 5 times and is read once",
        "dev: the first 2 of 3 images are used, as in every public program (cut_dev=False keeps all)",
        "train: 6 images, 30 captions (5 per image); up to 3 regions of 4 numbers",
        "your own test split of 2 images",
        "vocabulary:",
        "This data can be used.",
    ):
        assert part in words, part


@pytest.mark.parametrize(
    ("stem", "images", "words"),
    [
        ("test", 1000, "1K test images at once, as for Flickr30K"),
        ("test", 5000, "5K test images at once, as for COCO 5K"),
        ("testall", 5000, "COCO: 1K, the mean over 5 folds of 1,000 images, and 5,000 at once"),
    ],
)
def test_the_protocol_that_applies(precomp, stem, images, words):
    precomp.write(stem, RNG.random((images, 1, 4)), range(100, 100 + images))
    report = check(precomp.folder)
    assert f"protocol: {words}" in report.lines
    assert ("test_*: not used, because it is the first fifth of testall_*" in report.lines) == (
        stem == "testall"
    )


def test_every_format_is_checked(pocket, karpathy, tmp_path):
    for folder in (pocket, karpathy, import_data(pocket, tmp_path / "native")):
        report = check(folder)
        assert report.ok, report
        assert len(report.lines) >= 6


def test_tsv_is_checked(tsv):
    folder, _ = tsv
    assert check(folder).ok
    lines = (folder / "boxes36.tsv").read_text().split("\n")
    lines[2] = "\t".join([*lines[2].split("\t")[:5], "%%%"])
    (folder / "boxes36.tsv").write_text("\n".join(lines))
    assert "line 3: features is not base64" in str(check(folder))


def test_numbers_that_are_not_finite(precomp):
    precomp.change("train_ims.npy", (4, 1, 2), np.nan)
    only_problem(
        precomp.folder,
        "train_ims.npy, row 4: NaN, or numbers above",
        "image 4",
        "extract these features again",
    )
    precomp.change("train_ims.npy", (4, 1, 2), 0.5)
    precomp.change("dev_ims.npy", slice(10, 15), np.inf)
    only_problem(precomp.folder, "dev_ims.npy, row 10: NaN, or numbers above", "1 such image in dev")
    assert check(precomp.folder, scan=False).ok


def test_images_of_nothing_but_zeros(precomp):
    precomp.change("train_ims.npy", 2, 0.0)
    precomp.change("train_ims.npy", 5, 0.0)
    only_problem(precomp.folder, "train_ims.npy, row 2: only zeros", "2 such images in train", "remove")


def test_ids_that_occur_twice(precomp):
    precomp.text("train_ids.txt", [0, 1, 2, 3, 1, 5])
    only_problem(precomp.folder, "train: 1 ids", "'1' for images 1, 4", "its own id")


def test_an_image_in_two_splits(precomp):
    precomp.text("test_ids.txt", [3] * 5 + [11] * 5)
    only_problem(precomp.folder, "1 images are in both train and test, the first '3'", "remove them from one")


def test_without_ids_rows_are_no_leak(precomp):
    for split in precomp.sizes:
        (precomp.folder / f"{split}_ids.txt").unlink()
    report = check(precomp.folder)
    assert report.ok, report
    assert len(report.warnings) == 3
    assert "train_ids.txt is missing" in report.warnings[0]


def test_images_without_captions(precomp):
    precomp.text("train_image_of_text.txt", [0] * 30)
    report = check(precomp.folder)
    assert report.ok
    assert "images 1, 2, 3, 4, 5 have no caption" in report.warnings[0]


def test_all_problems_are_said_at_once(precomp):
    folder = precomp.folder
    (folder / "train_caps.txt").write_bytes(b"a\n\xff\n")
    np.save(folder / "train_ims.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    (folder / "dev_ims.npy").write_bytes((folder / "dev_ims.npy").read_bytes()[:-7])
    precomp.text("dev_caps.txt", ["a", "", "b"])
    (folder / "test_caps.txt").unlink()
    problems = check(folder).problems
    for part in (
        "train_caps.txt, line 2: the byte 0xff is not UTF-8",
        "train_ims.npy holds Python objects (pickle)",
        "dev_ims.npy is cut off",
        "dev_caps.txt: empty captions in line 2",
        "test_caps.txt is missing",
    ):
        assert any(part in problem for problem in problems), (part, problems)
    assert len(problems) == 5


def test_what_is_no_data_at_all(tmp_path):
    assert "Known formats" in check(tmp_path).problems[0]
    assert "no file or folder" in check(tmp_path / "nothing").problems[0]
    (tmp_path / "data.json").mkdir()
    assert "data.json is missing or not a file" in str(check(tmp_path))


@pytest.mark.parametrize("source", ["precomp", "pocket", "karpathy", "tsv", "native"])
def test_whatever_the_bytes_are_it_answers(request, source, tmp_path):
    made = request.getfixturevalue({"native": "pocket"}.get(source, source))
    folder = {"precomp": lambda: made.folder, "tsv": lambda: made[0]}.get(source, lambda: made)()
    if source == "native":
        folder = import_data(folder, tmp_path / "native")
    good = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    chance = random.Random(0)
    for _ in range(40):
        path = chance.choice(list(good))
        content = bytearray(good[path])
        for _ in range(chance.choice([1, 3, 30])):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.choice([None, 0, 1, len(content) // 2])])
        assert str(check(folder)), path
        path.write_bytes(good[path])
    assert check(folder).ok


@pytest.mark.parametrize(
    "value", [None, 3, [], {}, "x", {"splits": {"train": None}}, {"images": [None]}, {"images": {}}]
)
def test_json_of_any_kind_is_answered(tmp_path, karpathy, value):
    (karpathy / "dataset_flickr30k.json").write_text(json.dumps(value))
    assert not check(karpathy).ok
    (tmp_path / "data.json").write_text(json.dumps(value))
    assert not check(tmp_path).ok


def test_a_report_reads_like_plain_words():
    report = Report(["train: 3 images"], ["no ids"], ["captions are missing: write them"])
    assert not report.ok
    assert str(report).splitlines() == [
        "train: 3 images",
        "warning: no ids",
        "problem: captions are missing: write them",
        "Problems to fix: 1.",
    ]
    assert str(Report(["train: 3 images"])) == "train: 3 images\nThis data can be used."
