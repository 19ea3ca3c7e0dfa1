import pytest
import torch

from selhn.data import load_data
from selhn.eval import score_split
from selhn.models import create_model
from selhn.retrieve import Index
from selhn.text import Vocabulary


@pytest.fixture(scope="module")
def data():
    return load_data("world", images=100)


@pytest.fixture(scope="module", params=["rvse", "vsepp_order"])
def model(request, data):
    torch.manual_seed(0)
    model = create_model(
        request.param, tokenizer=Vocabulary.build(data.train.captions), feature_dim=data.feature_dim, dim=16
    )
    return model.eval()


@pytest.fixture
def split(data, model):
    if model.name != "vsepp_order":
        return data.test
    from dataclasses import replace

    from selhn.data import DenseFeatures

    features, _ = data.test.features.gather(torch.arange(data.test.num_images))
    return replace(data.test, features=DenseFeatures(features.mean(1, keepdim=True)), boxes=None)


def test_text_to_image_is_the_column_of_the_scores(model, split):
    index, scores = Index.build(model, split), score_split(model, split)
    assert len(index) == split.num_images
    for text in (0, 7, 33):
        best = scores[:, text].topk(5)
        hits = index.search(split.captions[text], k=5)
        torch.testing.assert_close(torch.tensor([hit.score for hit in hits]), best.values, rtol=1e-5, atol=1e-6)
        assert hits[0].kind == "image"
        assert hits[0].name == split.image_names[hits[0].position]
        assert len(hits[0].captions) == 5


def test_image_to_text_is_the_row_of_the_scores(model, split):
    index, scores = Index.build(model, split), score_split(model, split)
    regions, _ = split.features.gather(torch.tensor([4]))
    hits = index.search(regions[0], k=3)
    torch.testing.assert_close(
        torch.tensor([hit.score for hit in hits]), scores[4].topk(3).values, rtol=1e-5, atol=1e-6
    )
    assert all(hit.kind == "text" and hit.name == split.captions[hit.position] for hit in hits)


def test_within_one_modality(model, split):
    index = Index.build(model, split)
    hits = index.search(split.captions[12], k=1, find="text")
    assert hits[0].name == split.captions[12]


def test_saved_and_opened_again(tmp_path, model, split):
    index = Index.build(model, split, path=tmp_path / "photos.index")
    again = Index.load(tmp_path / "photos.index")
    query = "a red ball beside a small cube"
    assert [hit.name for hit in again.search(query)] == [hit.name for hit in index.search(query)]
    index.save(tmp_path / "photos.index")
    assert [path.name for path in tmp_path.iterdir()] == ["photos.index"]


def test_more_asked_than_there_is(model, split):
    assert len(Index.build(model, split).search("a ball", k=10_000)) == split.num_images


@pytest.mark.usefixtures("as_a_user")
def test_bad_queries(model, split):
    index = Index.build(model, split)
    with pytest.raises(ValueError, match="the query is empty"):
        index.search("   ")
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        index.search("a ball", k=0)
    with pytest.raises(ValueError, match='find must be "image" or "text", got .images'):
        index.search("a ball", find="images")
    with pytest.raises(ValueError, match=r"by its regions, \(M, 256\) for this model; got shape \(3, 17\)"):
        index.search(torch.rand(3, 17))


def test_what_is_no_index(tmp_path, model, split):
    with pytest.raises(ValueError, match="is no index, or a damaged one"):
        Index.load(tmp_path)
    index = Index.build(model, split, path=tmp_path / "i")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="exists and is no index"):
        index.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "embeddings.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"was written by selhn before 0\.2"):
        Index.load(tmp_path / "old")


def test_a_model_without_vectors_to_search_by(data):
    vocabulary = Vocabulary.build(data.train.captions)
    model = create_model("scan_t2i_avg", tokenizer=vocabulary, feature_dim=data.feature_dim, dim=8, word_dim=4)
    with pytest.raises(ValueError, match="scan_t2i_avg compares regions with words and has no vector to search by"):
        Index.build(model, data.test)
