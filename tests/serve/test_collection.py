import pytest
import torch
from picture_cases import encoded, photo
from tiny import NUMBER, WORDS, make_collection, small_model

from selhn.base.errors import SelhnError
from selhn.export import towers_of
from selhn.pictures import Library
from selhn.search import Index, Item, Query
from selhn.serve.collection import Collection


def names(hits):
    return [hit.id for hit in hits]


def test_answers_are_those_of_the_index(collection):
    index = collection.index
    asked = [Query(WORDS[0], k=3), Query(like=index.ids()[2], k=2), Query(WORDS[1], find="text", k=4)]
    found = collection.answer(asked)
    alone = [
        index.search(WORDS[0], k=3),
        index.search(like=index.ids()[2], k=2),
        index.search(WORDS[1], k=4, find="text"),
    ]
    for ours, theirs in zip(found, alone, strict=True):
        assert [(hit.name, hit.metadata) for hit in ours] == [(hit.name, hit.metadata) for hit in theirs]
        assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], abs=1e-6)


def test_texts_are_encoded_together_and_pictures_computed_together(collection, monkeypatch):
    calls = []
    model = collection.index.towers.matcher
    real = model.encode_texts
    monkeypatch.setattr(
        model, "encode_texts", lambda tokens, mask: calls.append(len(tokens)) or real(tokens, mask)
    )
    pictures = [collection.library.prepare(encoded(photo(number)), 10**6) for number in range(3)]
    collection.towers.extractor.backbone.calls.clear()
    vectors = collection.embed(pictures)
    queries = [
        *(Query(text, k=NUMBER) for text in WORDS[:5]),
        *(Query(image=one, k=NUMBER) for one in vectors),
    ]
    assert all(len(hits) == NUMBER for hits in collection.answer(queries))
    assert calls == [5]
    assert collection.towers.extractor.backbone.calls == [3]


def test_a_picture_finds_itself(collection):
    for number in (0, 7):
        path = collection.library.picture(collection.index.ids()[number])
        (vector,) = collection.embed([collection.library.prepare(path.read_bytes(), 10**6)])
        assert names(collection.answer([Query(image=vector, k=1)])[0]) == [str(path)]


def test_a_bad_question_spoils_no_other(collection):
    good, bad, ugly = collection.answer([Query(WORDS[0], k=NUMBER), Query("   "), Query(like="nothing")])
    assert len(good) == NUMBER
    assert "the query is empty" in str(bad)
    assert "there is no item" in str(ugly)


def test_filters(collection):
    both = [Query(WORDS[0], where='colour = "red"'), Query(WORDS[0], where="colour ="), Query(WORDS[0], k=1)]
    some, wrong, one = collection.answer(both)
    assert {hit.metadata["colour"] for hit in some} == {"red"}
    assert len(some) == 3
    assert "cannot be read" in str(wrong)
    assert len(one) == 1
    records, total, _ = collection.browse(1, 2, 'colour = "red"')
    assert total == 3
    assert [record.id for record in records] == collection.index.ids()[4:9:4]


def test_browsing(collection):
    records, total, _ = collection.browse(10, 24)
    assert total == NUMBER
    assert [record.id for record in records] == collection.index.ids()[10:]


def test_fields_that_many_share(collection):
    fields = collection.fields()
    assert fields["colour"] == [("red", 3), ("green", 3), ("blue", 3), ("grey", 3)]
    assert dict(fields["folder"]) == {".": 6, "trip": 6}
    assert not {"file", "license_url", "source"} & set(fields), (
        "everyone's own, addresses, and one value only"
    )
    collection.index.delete(collection.index.ids()[:1])
    assert dict(collection.fields()["colour"])["red"] == 2


def test_an_index_without_pictures(tmp_path):
    index = Index.create(towers_of(small_model()))
    index.add(Item(str(number), torch.rand(3, 4)) for number in range(4))
    bare = Collection(Library(index))
    assert len(bare.answer([Query(WORDS[0], k=2)])[0]) == 2
    assert bare.library.picture(index.ids()[0]) is None
    with pytest.raises(SelhnError, match="search with a text"):
        bare.library.prepare(encoded(photo(1)), 10**6)
    with pytest.raises(SelhnError, match="was not made from pictures"):
        bare.library.add(encoded(photo(1)), 10**6, [], {})


def test_what_another_process_writes_is_seen(collection):
    question = [Query(WORDS[0], k=NUMBER)]
    assert len(collection.answer(question)[0]) == NUMBER
    other = Index.load(collection.index.path, towers_of(small_model()))
    other.delete(other.ids()[:2])
    collection._checked = -1e9
    assert len(collection.answer(question)[0]) == NUMBER - 2
    assert collection.stale == ""


def test_an_index_that_is_taken_away_is_searched_on(collection):
    (collection.index.path / "manifest.json").write_text("nothing")
    assert len(collection.answer([Query(WORDS[0], k=NUMBER)])[0]) == NUMBER
    assert collection.stale


def test_a_filter_that_nobody_waits_for_is_not_evaluated(collection, monkeypatch):
    asked = []
    search = collection.index.search_many

    def noted(queries):
        asked.extend(query.where for query in queries)
        return search(queries)

    monkeypatch.setattr(collection.index, "search_many", noted)
    questions = [Query(WORDS[0], where=f"stars = {number}") for number in range(5)]
    collection.answer(questions, lambda row: row == 3)
    assert asked == ["stars = 3"]


def test_browsing_past_the_end_reads_nothing(collection, monkeypatch):
    monkeypatch.setattr(collection.index, "records", lambda where=None, order=None: pytest.fail("was read"))
    assert collection.browse(10**9, 10)[:2] == ([], NUMBER)


def test_the_timeline_is_read_once_for_each_change(tmp_path, monkeypatch):
    collection = make_collection(tmp_path, more=12)
    found = collection.timeline('camera = "Tiny One"')
    assert found.days == [("2024-03-01", 5), ("2024-02-27", 5), ("2024-02-24", 2)]
    assert found.months() == [("2024-03", 5), ("2024-02", 7)]
    assert found.shapes == [150, 67, 100, 300, 150, *[67, 100, 300, 150, 67], *[100, 300]]
    assert collection.timeline(order="oldest").shapes[:2] == [100, 300][::-1]
    records, total, version = collection.browse(0, 3, 'camera = "Tiny One"', "newest")
    assert [record.metadata["file"] for record in records] == ["more000.png", "more001.png", "more002.png"]
    assert (total, version) == (12, found.version)
    with monkeypatch.context() as patch:
        patch.setattr(collection.index, "records", lambda where=None, order=None: pytest.fail("was read"))
        assert collection.timeline('camera = "Tiny One"') is found
    collection.index.delete([records[0].id])
    assert collection.timeline('camera = "Tiny One"').days[0] == ("2024-03-01", 4)
