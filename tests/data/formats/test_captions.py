import json

import pytest

from selhn.base.errors import SelhnError
from selhn.data.formats.captions import PictureTexts, match_texts, read_picture_texts
from selhn.pictures.examples import ANNOTATIONS, PICTURES

WANTED = {"a.jpg": PictureTexts(("a dog runs", "a brown dog")), "b.jpg": PictureTexts(("a cat",))}
FILES = {
    "captions.csv": 'image,caption\na.jpg,a dog runs\n"a.jpg",a  brown dog\nb.jpg,"a cat"\n',
    "results.csv": "image_name| number| comment\na.jpg| 0| a dog runs\na.jpg| 1| a brown dog\nb.jpg| 0| a cat\n",
    "tabs.tsv": "file\ttext\na.jpg\ta dog runs\na.jpg\ta brown dog\nb.jpg\ta cat\nb.jpg\t\n",
    "token.txt": "a.jpg#0\ta dog runs\na.jpg#1\ta brown dog\nb.jpg#0\ta cat\n",
    "lines.jsonl": '{"image": "a.jpg", "captions": ["a dog runs", "a brown dog"]}\n'
    '{"file": "b.jpg", "caption": "a cat"}\n',
    "coco.json": json.dumps(
        {
            "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 9, "file_name": "b.jpg"}],
            "annotations": [
                {"image_id": 7, "caption": "a dog runs"},
                {"image_id": 9, "caption": "a cat\n"},
                {"image_id": 7, "caption": "a brown dog"},
            ],
        }
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_says_the_same(tmp_path, name):
    (tmp_path / name).write_text(FILES[name])
    assert read_picture_texts(tmp_path / name) == WANTED


def test_splits_are_kept(tmp_path):
    images = [
        {"split": split, "filename": f"{split}.jpg", "sentences": [{"raw": f"a {split}"}]}
        for split in ("train", "restval", "val", "test")
    ]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    found = read_picture_texts(tmp_path / "dataset.json")
    assert [texts.split for texts in found.values()] == ["train", "train", "dev", "test"]
    (tmp_path / "c.csv").write_text("image,caption,split\na.jpg,x,val\nb.jpg,y,dev\nc.jpg,z,\n")
    assert [texts.split for texts in read_picture_texts(tmp_path / "c.csv").values()] == ["dev", "dev", None]
    (tmp_path / "d.csv").write_text("image,caption,split\na.jpg,x,Train\nb.jpg,y,validation\nc.jpg,z,TEST \n")
    assert [texts.split for texts in read_picture_texts(tmp_path / "d.csv").values()] == [
        "train",
        "dev",
        "test",
    ]


def test_the_example_pictures():
    found = read_picture_texts(ANNOTATIONS)
    assert len(found) == 76
    assert all(len(texts.texts) == 5 for texts in found.values())
    assert sorted(found) == sorted(path.name for path in PICTURES.glob("*.jpg"))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "x,y\n1,2\n", "first line"),
        ("a.csv", "image,caption\na.jpg\n", "line 2"),
        ("a.csv", "", "first line"),
        ("a.csv", 'image,caption\na.jpg,"a sign, not closed\nb.jpg,a dog\n', "quotes"),
        ("a.csv", "image,caption,split\na.jpg,x,train\nb.jpg,y,hidden\n", "line 3.*hidden"),
        ("a.jsonl", '{"image": "a", "caption": "x", "split": "fold1"}\n', "entry 1.*fold1"),
        ("a.jsonl", '{"image": 3, "caption": "x"}\n', "entry 1.*image"),
        ("a.jsonl", '{"image": \n', "line 1.*JSON"),
        ("a.json", "3", "list"),
        ("a.json", '{"images": [], "annotations": [{"image_id": 1}]}', "annotation 0"),
        ("a.json", "[]", "no captions"),
        ("token.txt", "a.jpg#0\ta dog\nnonsense\n", "line 2"),
    ],
)
def test_what_is_wrong_and_where(tmp_path, name, content, reason):
    (tmp_path / name).write_text(content)
    with pytest.raises(SelhnError, match=reason):
        read_picture_texts(tmp_path / name)


def test_names_are_matched_by_path_then_by_name_then_without_suffix():
    names = ["x/a.jpg", "x/b.jpg", "y/b.jpg", "000012.jpg"]
    given = {
        name: PictureTexts((name,))
        for name in ("./x/a.jpg", "a.jpg", "y/b.jpg", "b.jpg", "000012", "gone.jpg")
    }
    matched, unmatched = match_texts(names, given)
    assert matched == {
        "x/a.jpg": PictureTexts(("./x/a.jpg", "a.jpg")),
        "y/b.jpg": PictureTexts(("y/b.jpg",)),
        "000012.jpg": PictureTexts(("000012",)),
    }
    assert unmatched == ["b.jpg", "gone.jpg"]


def test_quotes_and_line_breaks_in_a_table(tmp_path):
    (tmp_path / "a.csv").write_text(
        'image|caption\na.jpg|"a sign that is not closed\nb.jpg|a "big" dog\nc.jpg| "x" y\n'
    )
    found = read_picture_texts(tmp_path / "a.csv")
    assert [texts.texts for texts in found.values()] == [
        ('"a sign that is not closed',),
        ('a "big" dog',),
        ('"x" y',),
    ]
    (tmp_path / "b.csv").write_text(
        'image,caption\na.jpg,"a dog\njumps, high"\nb.jpg,one\u2028mark\nc.jpg,"a ""b"""\n'
    )
    found = read_picture_texts(tmp_path / "b.csv")
    assert [texts.texts for texts in found.values()] == [("a dog jumps, high",), ("one mark",), ('a "b"',)]
    (tmp_path / "c.csv").write_text('image,caption\na.jpg,"a dog\njumps"\nb.jpg\n')
    with pytest.raises(SelhnError, match="line 4"):
        read_picture_texts(tmp_path / "c.csv")
