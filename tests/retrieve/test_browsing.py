import pytest

from selhn.retrieve import MilvusIndex
from selhn.retrieve.browsing import browse


def test_pages_in_order(index):
    index.delete(["item2"])
    names = [f"item{number}" for number in range(20) if number != 2]
    for first in (0, 5, 17, 40):
        records, total = browse(index, first, 4)
        assert [record.id for record in records] == names[first : first + 4]
        assert total == 19
    records, total = browse(index, 1, 2, "even = true")
    assert [record.id for record in records] == ["item4", "item6"]
    assert total == 9
    assert browse(index, 0, 0) == ([], 19)


def test_pages_of_milvus_hold_every_item_once(tmp_path, model, make_item):
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    index = MilvusIndex.create(model, str(tmp_path / "x.db"))
    index.add(make_item(number) for number in range(20))
    seen = []
    for first in range(0, 24, 6):
        records, total = browse(index, first, 6)
        assert total == 20
        seen += [record.id for record in records]
    assert sorted(seen) == sorted(f"item{number}" for number in range(20))
    records, total = browse(index, 0, 3, "not even = true")
    assert (len(records), total) == (3, 10)
    assert browse(index, 100, 3, "even = true") == ([], 10)
