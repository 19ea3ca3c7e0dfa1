from selhn.search.where import read_filter


def test_rows_names_and_hits(index):
    index.delete(["item2", "item13"])
    snapshot = index.store.snapshot
    assert len(snapshot) == index.store.count() == 18
    assert index.store.count("text") == 36
    assert index.store.count("text", read_filter("year < 2004")) == 6
    assert snapshot.first_rows["image"] == [0, 12, 20]
    assert snapshot.first_rows["text"] == [0, 24, 40]
    assert [record.id for record in index.store.scan()] == list(snapshot.row_of_id) == index.ids()
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
