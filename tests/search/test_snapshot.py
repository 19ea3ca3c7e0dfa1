import pytest


def test_rows_names_and_hits(index):
    index.delete(["item2", "item13"])
    snapshot = index.snapshot
    assert len(snapshot) == 18
    assert snapshot.first_rows("image") == [0, 12, 20]
    assert snapshot.first_rows("text") == [0, 24, 40]
    assert [record.id for record in snapshot.records()] == list(snapshot.row_of_id) == index.ids()
    hit = snapshot.hit("image", 14, 0.5)
    assert (hit.id, hit.name, hit.position, hit.kind) == ("item14", "item14", 12, "image")
    assert hit.metadata == {"year": 2014, "even": True}
    assert len(hit.captions) == 2
    text = snapshot.hit("text", 24 + 2 * 2 + 1, 0.5)
    assert (text.id, text.name, text.position) == ("item14", index.get("item14").captions[1], 25)
    assert index.ids()[hit.position] == hit.id


def test_an_item_that_is_not_there(index):
    with pytest.raises(ValueError, match="there is no item 'Item2' in the index"):
        index.snapshot.place("Item2")
    assert "item2" in index
    assert "Item2" not in index


def test_a_snapshot_never_changes(index):
    before = index.snapshot
    assert before.has_texts()
    index.delete(["item0"])
    assert len(before) == 20
    assert len(index.snapshot) == 19
