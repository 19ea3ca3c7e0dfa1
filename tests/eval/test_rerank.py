import pytest
import torch

from selhn.data import load_data
from selhn.eval import evaluate, rerank_split, score_split
from selhn.eval.rerank import blend, score_chosen
from selhn.models import create_model
from selhn.text import Vocabulary


@pytest.fixture(scope="module")
def split():
    return load_data("world", images=100).test


@pytest.fixture(scope="module")
def models(split):
    torch.manual_seed(0)
    settings = {"tokenizer": Vocabulary.build(split.captions), "feature_dim": split.features.width, "dim": 16}
    settings["word_dim"] = 8
    regions = split.features.num_regions
    return {
        "rvse": create_model("rvse", **settings).eval(),
        "scan_t2i_avg": create_model("scan_t2i_avg", **settings).eval(),
        "sgr": create_model("sgr", sim_dim=8, num_regions=regions, **settings).eval(),
    }


def test_blended_scores_are_on_the_scale_of_the_second():
    first = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    second = torch.tensor([[10.0, 30.0, 20.0], [1.0, 3.0, 2.0]])
    assert blend(first, second, 0).equal(second)
    torch.testing.assert_close(blend(first, second, 1), torch.tensor([[10.0, 20.0, 30.0], [2.0, 2.0, 2.0]]))
    torch.testing.assert_close(blend(first, second, 0.5)[1], torch.tensor([1.5, 2.5, 2.0]))
    for share in (-0.1, 1.5):
        with pytest.raises(ValueError, match="first_share is"):
            blend(first, second, share)


@pytest.mark.parametrize("name", ["scan_t2i_avg", "sgr"])
def test_pairs_alone_are_what_they_are_in_the_matrix(models, split, name):
    from selhn.eval import encode_split

    images, texts = encode_split(models[name], split)
    image, text = torch.tensor([0, 5, 5, 99]), torch.tensor([3, 499, 0, 17])
    matrix = score_split(models[name], split, for_ranking=True)
    found = score_chosen(models[name], images, texts, image, text)
    torch.testing.assert_close(found, matrix[image, text], rtol=1e-4, atol=1e-5)


def test_recall_of_both_stages(models, split):
    rvse, scan = models["rvse"], models["scan_t2i_avg"]
    everything = rerank_split(rvse, scan, split, k=10_000, first_share=0)
    assert everything.to_dict() == evaluate(scan, split).to_dict(), "all re-ranked is the second model alone"
    assert rerank_split(rvse, scan, split, k=1).to_dict() == evaluate(rvse, split).to_dict(), (
        "one has one order"
    )
    ten, alone = rerank_split(rvse, scan, split, k=10), evaluate(rvse, split)
    assert (ten.t2i[10], ten.i2t[10]) == (alone.t2i[10], alone.i2t[10]), "the first ten stay the first ten"
    with pytest.raises(ValueError, match="k must be at least 1"):
        rerank_split(rvse, scan, split, k=0)
