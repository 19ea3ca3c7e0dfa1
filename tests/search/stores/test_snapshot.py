from index_cases import make_item

from selhn.search import Index
from selhn.search.where import read_filter


def test_rows_names_and_hits(index):
    index.delete(["item2", "item13"])
    snapshot = index.store.snapshot
    assert len(snapshot) == index.store.count() == 18
    assert index.store.count("text") == 36
    assert index.store.count("text", read_filter("year < 2004")) == 6
    assert snapshot.first_rows["image"] == [0, 12, 20]
    assert snapshot.first_rows["text"] == [0, 24, 40]
    assert [record.id for record in index.store.scan()] == index.ids()
    hit = snapshot.hit("image", 14, 0.5)
    assert (hit.id, hit.name, hit.kind) == ("item14", "item14", "image")
    assert hit.metadata == {"year": 2014, "even": True}
    assert len(hit.captions) == 2
    text = snapshot.hit("text", 24 + 2 * 2 + 1, 0.5)
    assert (text.id, text.name) == ("item14", index.get("item14").captions[1])


def test_a_snapshot_never_changes(index):
    before = index.store.snapshot
    index.delete(["item0"])
    assert len(before) == 20
    assert len(index.store.snapshot) == 19


def test_items_are_found_by_their_ids_even_if_all_have_one_hash(index, monkeypatch):
    for module in ("segment", "snapshot"):
        monkeypatch.setattr(f"selhn.search.stores.{module}.hash", lambda name: 7, raising=False)
    index = Index.load(index.path)
    index.delete(["item3"])
    index.add([make_item(3)])
    found = index.store.snapshot.find(["item13", "nobody", "item3", "item0"])
    assert found == {"item0": (0, 0), "item13": (1, 1), "item3": (2, 0)}
    assert list(index.store.get(["item13", "nobody", "item0"])) == ["item13", "item0"]
