"""CxC and ECCV Caption: true pairs by the ids of COCO, against the rules of their authors' program."""

import json

import pytest
import torch

from selhn.base.errors import Damaged, SelhnError
from selhn.data import DenseFeatures, Split, read_truth
from selhn.eval import measure_split

IDS = (391895, 60623, 483108, 384213)


@pytest.fixture
def folder(tmp_path):
    """Four images with two captions each; the first image has a true caption of another, the second text two images."""
    images = [
        {"split": "test", "filename": f"COCO_val2014_{cocoid:012}.jpg", "cocoid": cocoid, "imgid": n,
         "sentences": [{"raw": f"Caption {n} {k}.", "sentid": 100 * n + k} for k in range(3)]}
        for n, cocoid in enumerate(IDS)
    ]  # fmt: skip
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": images}))
    of_images, of_texts = {IDS[0]: [0, 1, 100], IDS[2]: [200, 201]}, {"0": [IDS[0]], "1": [IDS[0], IDS[3]]}
    (tmp_path / "eccv_image_to_caption.json").write_text(json.dumps(of_images))
    (tmp_path / "eccv_caption_to_image.json").write_text(json.dumps(of_texts))
    return tmp_path


def split(captions=2, names=None):
    texts = [f"caption {n} {k}" for n in range(4) for k in range(captions)]
    names = names or [f"COCO_val2014_{cocoid:012}.jpg" for cocoid in IDS]
    return Split(
        "test", DenseFeatures(torch.rand(4, 1, 3)), texts, torch.arange(4).repeat_interleave(captions), names
    )


def test_true_pairs_by_their_ids(folder):
    truth = read_truth(folder, split(), folder / "dataset_coco.json")
    assert truth.of_images.nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [2, 4], [2, 5]]
    assert truth.of_texts.nonzero().tolist() == [[0, 0], [0, 1], [3, 1]]


def test_a_sixth_caption_that_the_split_left_out_is_no_item(folder):
    """The true captions of ECCV Caption have two of them."""
    path = folder / "eccv_image_to_caption.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), IDS[1]: [102, 100]}))
    truth = read_truth(folder, split(), folder / "dataset_coco.json")
    assert truth.of_images[1].nonzero().flatten().tolist() == [2]


def test_only_queries_with_a_truth_are_measured(folder):
    truth = read_truth(folder, split(), folder / "dataset_coco.json")
    scores = torch.zeros(4, 8)
    scores[0, 2], scores[2, 0], scores[3, 1] = (
        3.0,
        2.0,
        1.0,
    )  # image 2 finds a wrong text, text 0 a wrong image
    found = measure_split(scores, split(), truth=truth, extended=True)
    assert (found.i2t.num_queries, found.i2t[1]) == (2, 50)
    assert (found.t2i.num_queries, found.t2i[1]) == (2, 50)
    # Their rule: of the first R places those that are true, R being how many are: images 1 of 3 and 0 of 2.
    assert found.i2t.r_precision == pytest.approx(100 * (1 / 3 + 0) / 2)
    assert found.i2t.map_at_r == pytest.approx(100 * (1 / 3 + 0) / 2)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (split(names=["a.jpg"] * 4), SelhnError),
        (split(names=["7.jpg"] * 4), SelhnError),
        (split(captions=4), SelhnError),
        (split(names=[f"{cocoid}.jpg" for cocoid in reversed(IDS)]), SelhnError),
    ],
    ids=["no id", "unknown id", "more captions", "other captions"],
)
def test_data_that_is_not_theirs(folder, given, error):
    with pytest.raises(error):
        read_truth(folder, given, folder / "dataset_coco.json")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"5": [0]}, SelhnError),
        ({"": [0]}, SelhnError),
        ({IDS[0]: [""]}, SelhnError),
        ({IDS[0]: [9]}, SelhnError),
        ({IDS[0]: 0}, Damaged),
    ],
)
def test_files_that_do_not_fit(folder, content, error):
    (folder / "eccv_image_to_caption.json").write_text(json.dumps(content))
    with pytest.raises(error):
        read_truth(folder, split(), folder / "dataset_coco.json")
