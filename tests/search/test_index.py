from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from model_cases import make_model

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.data import load_data
from selhn.eval import score_split
from selhn.export import towers_of
from selhn.models import create_model
from selhn.search import Index, Item
from selhn.search.stores import segments as segments_module
from selhn.search.stores import store as store_module
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
    index, scores = Index.build(towers_of(model), split), score_split(model, split)
    assert len(index) == split.num_images
    for text in (0, 7, 33):
        best = scores[:, text].topk(5)
        hits = index.search(split.captions[text], k=5)
        torch.testing.assert_close(
            torch.tensor([hit.score for hit in hits]), best.values, rtol=1e-5, atol=1e-6
        )
        assert hits[0].kind == "image"
        assert [hit.id for hit in hits] == [split.image_names[row] for row in best.indices.tolist()]
        assert len(hits[0].captions) == 5


def test_image_to_text_is_the_row_of_the_scores(model, split):
    index, scores = Index.build(towers_of(model), split), score_split(model, split)
    regions, _ = split.features.gather(torch.tensor([4]))
    hits = index.search(regions[0], k=3, find="text")
    torch.testing.assert_close(
        torch.tensor([hit.score for hit in hits]), scores[4].topk(3).values, rtol=1e-5, atol=1e-6
    )
    assert [hit.name for hit in hits] == [split.captions[row] for row in scores[4].topk(3).indices.tolist()]
    assert {hit.kind for hit in hits} == {"text"}


def test_within_one_modality(model, split):
    index = Index.build(towers_of(model), split)
    hits = index.search(split.captions[12], k=1, find="text")
    assert hits[0].name == split.captions[12]


def test_saved_and_opened_again(tmp_path, model, split):
    index = Index.build(towers_of(model), split, path=tmp_path / "photos.index")
    again = Index.load(tmp_path / "photos.index")
    query = "a red ball beside a small cube"
    assert [hit.name for hit in again.search(query)] == [hit.name for hit in index.search(query)]
    index.save(tmp_path / "photos.index")
    assert [path.name for path in tmp_path.iterdir()] == ["photos.index"]


def test_an_index_in_words(model, split):
    index = Index.build(towers_of(model), split)
    assert str(index).startswith(
        f"memory: {split.num_images} images, {split.num_texts} texts, 16 numbers each in float32"
    )
    assert repr(index) == f"Index({index})"


def test_more_asked_than_there_is(model, split):
    assert len(Index.build(towers_of(model), split).search("a ball", k=10_000)) == split.num_images


@pytest.mark.usefixtures("as_a_user")
def test_bad_queries(model, split):
    index = Index.build(towers_of(model), split)
    with pytest.raises(ValueError, match="the query is empty"):
        index.search("   ")
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        index.search("a ball", k=0)
    with pytest.raises(SelhnError, match=r"k takes a whole number, got 2\.0"):
        index.search("a ball", k=2.0)
    with pytest.raises(
        SelhnError, match="was not made from pictures: search with the id of an item, or with regions"
    ):
        index.search(image="dog.jpg")
    with pytest.raises(SelhnError, match="the queries are one text: give a list"):
        index.search_many("a ball")
    with pytest.raises(ValueError, match='find must be "image" or "text", got .images'):
        index.search("a ball", find="images")
    with pytest.raises(ValueError, match=r"have shape \(3, 17\): give \(M, 256\) for this model"):
        index.search(torch.rand(3, 17))
    with pytest.raises(SelhnError, match="the query is a dict: .* or a list of them"):
        index.search({"a ball": 1})
    with pytest.raises(SelhnError, match=r"the regions of 'new' have shape \(3, 17\): give \(M, 256\)"):
        index.add([Item("new", torch.rand(3, 17))])


@pytest.mark.usefixtures("as_a_user")
def test_a_whole_data_set_is_no_split(model, data):
    with pytest.raises(SelhnError, match=r"a whole data set is not a list of images: .* data\.test"):
        Index.build(towers_of(model), data)


def test_what_is_no_index(tmp_path, model, split):
    with pytest.raises(NotFound, match="does not exist"):
        Index.load(tmp_path / "nowhere")
    with pytest.raises(NotFound, match="is not an index"):
        Index.load(tmp_path)
    index = Index.build(towers_of(model), split, path=tmp_path / "i")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="is not an index"):
        index.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "embeddings.safetensors").write_bytes(b"x")
    with pytest.raises(Damaged, match=r"was written by selhn before 0\.2"):
        Index.load(tmp_path / "old")


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_precision(model):
    with pytest.raises(ValueError, match="precision is 'int4': choose one of float32, float16, int8"):
        Index.create(towers_of(model), precision="int4")


def test_a_model_without_vectors_to_search_by(data):
    vocabulary = Vocabulary.build(data.train.captions)
    model = create_model(
        "scan_t2i_avg", tokenizer=vocabulary, feature_dim=data.feature_dim, dim=8, word_dim=4
    )
    with pytest.raises(ValueError, match="scan_t2i_avg compares regions with words"):
        Index.build(towers_of(model), data.test)


def test_a_build_replaces_what_was_there_in_one_step(tmp_path, model, split):
    first = Index.build(towers_of(model), split, path=tmp_path / "i", precision="float16")
    items = [Item("only", vector=torch.ones(16))]
    second = Index.build(towers_of(model), items, path=tmp_path / "i")
    assert second.ids() == Index.load(tmp_path / "i").ids() == ["only"]
    assert len(first.search("a red ball", k=3)) == 3, "who had it open still has it"


def test_a_build_that_stopped_goes_on_where_it_was(tmp_path, model, split, monkeypatch):
    monkeypatch.setattr(segments_module, "SEGMENT_ITEMS", 30)
    monkeypatch.setattr(store_module, "ENCODED_AT_ONCE", 10)
    encode, encoded = store_module.encode_items, []

    def stopped(model, items, *rest):
        if len(encoded) == 7:
            raise KeyboardInterrupt
        encoded.append(len(items))
        return encode(model, items, *rest)

    monkeypatch.setattr(store_module, "encode_items", stopped)
    with pytest.raises(KeyboardInterrupt):
        Index.build(towers_of(model), split, path=tmp_path / "i")
    assert len(Index.load(tmp_path / "i")) == 60
    monkeypatch.setattr(store_module, "encode_items", lambda *args: (encoded.append(10), encode(*args))[1])
    again = Index.build(towers_of(model), split, path=tmp_path / "i")
    assert sum(encoded) == 70 + 40, "only what was lost is encoded again"
    assert again.ids() == Index.build(towers_of(model), split).ids()
    assert again.store.snapshot.unfinished is None


def test_saved_elsewhere(tmp_path, model, split):
    index = Index.build(towers_of(model), split, path=tmp_path / "i")
    index.delete(index.ids()[:10])
    index.save(tmp_path / "copy")
    copy = Index.load(tmp_path / "copy")
    assert copy.ids() == index.ids()
    assert [hit.id for hit in copy.search("a red ball")] == [hit.id for hit in index.search("a red ball")]


def test_a_model_that_is_in_its_place_is_not_moved(model, split, monkeypatch):
    """While it is moved, another thread cannot use its GRUs."""
    index = Index.build(towers_of(model), split)
    monkeypatch.setattr(model, "to", lambda device: pytest.fail("it was moved"))
    assert index.to("cpu") is index


def test_search_goes_on_while_another_thread_writes(tmp_path):
    index = Index.create(towers_of(make_model("rvse")), tmp_path / "i")
    index.add([Item("first", vector=torch.ones(16))])

    def write():
        for number in range(30):
            index.add([Item(f"n{number}", vector=torch.rand(16))])
            if number % 10 == 9:
                index.compact()

    with ThreadPoolExecutor() as pool:
        writing, seen = pool.submit(write), [0]
        while not writing.done():
            hits = index.search(like="first", k=100)
            assert len({hit.id for hit in hits}) == len(hits) >= seen[-1]
            seen.append(len(hits))
        writing.result()
    assert len(index) == 31


NAMES = [f"n{number}" for number in range(8)]
# Few values, so that scores tie.
VECTORS = st.lists(st.integers(-1, 1), min_size=16, max_size=16).map(lambda row: torch.tensor(row).float())
ITEMS = st.builds(
    Item, st.sampled_from(NAMES), vector=VECTORS, metadata=st.fixed_dictionaries({"a": st.integers(0, 2)})
)


@cache
def shared_model():
    return make_model("rvse")


class AnyHistory(RuleBasedStateMachine):
    """Whatever is done to an index, a search finds what looking at every item finds."""

    @initialize(precision=st.sampled_from(["float32", "float16", "int8"]), on_disk=st.booleans())
    def create(self, precision, on_disk):
        import tempfile

        self.folder = tempfile.TemporaryDirectory() if on_disk else None
        self.model = shared_model()
        self.index = Index.create(
            towers_of(self.model),
            None if self.folder is None else f"{self.folder.name}/i",
            precision=precision,
        )
        self.items = {}

    @rule(
        items=st.lists(ITEMS, max_size=4, unique_by=lambda item: item.id),
        existing=st.sampled_from(["skip", "replace"]),
    )
    def add(self, items, existing):
        new = [item for item in items if existing == "replace" or item.id not in self.items]
        assert self.index.add(items, existing) == len(new)
        for item in new:
            self.items.pop(item.id, None)
            self.items[item.id] = item

    @rule(item=ITEMS, keep_image=st.booleans())
    def update(self, item, keep_image):
        if item.id not in self.items:
            with pytest.raises(NotFound):
                self.index.update([item])
            return
        before = self.items.pop(item.id)
        self.index.update([Item(item.id, metadata=item.metadata) if keep_image else item])
        self.items[item.id] = (
            Item(item.id, vector=before.vector, metadata=item.metadata) if keep_image else item
        )

    @rule(names=st.sets(st.sampled_from(NAMES), max_size=3))
    def delete(self, names):
        if names <= set(self.items):
            assert self.index.delete(sorted(names)) == len(names)
            for name in names:
                del self.items[name]
        else:
            with pytest.raises(NotFound):
                self.index.delete(sorted(names))

    @rule()
    def compact(self):
        self.index.compact()

    @rule()
    def reopen(self):
        if self.folder is not None:
            self.index = Index.load(f"{self.folder.name}/i", self.towers)

    @invariant()
    def search_is_brute_force(self):
        if not hasattr(self, "items"):
            return
        assert self.index.ids() == list(self.items)
        query = torch.arange(16.0) % 3 - 1
        for where in (None, {"a": [0, 2]}):
            allowed = [
                item for item in self.items.values() if where is None or item.metadata["a"] in where["a"]
            ]
            order = sorted(allowed, key=lambda item: -float(item.vector @ query))  # stable: ties as they came
            asked = Item("query", vector=query)
            self.index.add([asked])
            hits = self.index.search(like="query", k=3, where=where)
            self.index.delete(["query"])
            assert [hit.id for hit in hits] == [item.id for item in order[:3]]
            assert [hit.metadata for hit in hits] == [item.metadata for item in order[:3]]

    def teardown(self):
        if getattr(self, "folder", None) is not None:
            self.folder.cleanup()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=15, stateful_step_count=12, deadline=None, derandomize=True)
