import pytest
import torch

from selhn.data import load_data
from selhn.eval import PairScorer, score_split
from selhn.export import towers_of
from selhn.models import create_model
from selhn.search import Hit, Index, Reranker
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


@pytest.mark.parametrize("name", ["scan_t2i_avg", "sgr"])
def test_the_best_of_the_first_stage_in_the_order_of_the_second(models, split, name):
    index = Index.build(towers_of(models["rvse"]), split)
    reranker = Reranker(PairScorer.of_split(models[name], split))
    text = split.captions[7]
    column = score_split(models[name], split)[:, 7]
    recalled = {split.image_names.index(hit.id) for hit in index.search(text, k=12)}
    hits = reranker.search(index, text, k=5, depth=12, first_share=0)
    expected = sorted(recalled, key=lambda row: -float(column[row]))[:5]
    assert [hit.id for hit in hits] == [split.image_names[row] for row in expected]
    scores = torch.tensor([hit.score for hit in hits])
    torch.testing.assert_close(scores, column[expected], rtol=1e-4, atol=1e-5)
    assert reranker.rerank(text, []) == []


def test_both_stages_have_a_say(models, split):
    index, reranker = (
        Index.build(towers_of(models["rvse"]), split),
        Reranker(PairScorer.of_split(models["sgr"], split)),
    )
    text = split.captions[7]
    recalled = index.search(text, k=12)
    first = torch.tensor([hit.score for hit in recalled]).double()
    second = score_split(models["sgr"], split, for_ranking=True)[
        [split.image_names.index(hit.id) for hit in recalled], 7
    ].double()
    standard = [(numbers - numbers.mean()) / numbers.std(correction=0) for numbers in (first, second)]
    expected = [recalled[place].id for place in (standard[0] + standard[1]).argsort(descending=True).tolist()]
    hits = reranker.search(index, text, k=12, depth=12)
    assert [hit.id for hit in hits] == expected
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    alone = reranker.rerank(text, recalled, first_share=1)
    assert [hit.id for hit in alone] == [hit.id for hit in recalled]
    assert reranker.rerank(text, recalled[:1])[0].id == recalled[0].id


def test_what_cannot_be_reranked(models, split):
    index = Index.build(towers_of(models["rvse"]), split)
    with pytest.raises(ValueError, match="100 images and 3 ids"):
        PairScorer(models["scan_t2i_avg"], split.features, ["a", "b", "c"])
    reranker = Reranker(PairScorer(models["scan_t2i_avg"], split.features, [f"other{n}" for n in range(100)]))
    with pytest.raises(ValueError, match="the re-ranker has no regions of 'test-scene"):
        reranker.search(index, "a red ball")
    with pytest.raises(ValueError, match="only images can be re-ranked"):
        reranker.rerank("a red ball", [Hit(0.5, "text", "a ball", id="test-scene-000001")])


def test_any_second_stage_will_do():
    hits = [Hit(0.9, "image", name, id=name) for name in "abc"]
    by_name = Reranker(lambda text, ids, first, share: ([ord(name) for name in ids], [1.0] * len(ids)))
    assert [hit.id for hit in by_name.rerank("a", hits)] == ["c", "b", "a"]
    alike = Reranker(lambda text, ids, first, share: ([0.0] * len(ids), [1.0] * len(ids)))
    assert [hit.id for hit in alike.rerank("a", hits)] == ["a", "b", "c"], "ties keep their order"
