"""Collections: what is written is read back, in batches, and the errors of Milvus are one sentence."""

import builtins
import subprocess
import sys

import pytest
import torch

from selhn.search import is_milvus
from selhn.search.stores import milvus_rows
from selhn.search.stores.milvus_rows import MilvusRows, Row, is_server


def row(number, **changes):
    content = {
        "key": f"k{number}",
        "owner": "o",
        "content": "c",
        "added": number,
        "record": {"id": f"i{number}"},
    }
    return Row(**{**content, "vector": torch.tensor([float(number), 1.0, 0.0]), **changes})


@pytest.fixture
def made(lite):
    made = MilvusRows(lite)
    made.create(3)
    return made


@pytest.mark.parametrize(
    ("place", "milvus"),
    [
        ("http://host:19530", True),
        ("https://host:19530#cats", True),
        ("tcp://host:19530", True),
        ("unix:/run/milvus.sock", True),
        ("pictures.db", True),
        ("folder/pictures.db#cats", True),
        ("photos.index", False),
        ("httpx", False),
        (None, False),
    ],
)
def test_places(place, milvus):
    assert is_milvus(place) is milvus
    assert place is None or is_server(place) == (milvus and ".db" not in place)


def test_rows_are_written_over_and_read_back(made):
    made.put("images", [row(1), row(2)])
    made.put("images", [row(2, content="d"), row(3)])
    assert made.count("images") == 3
    found = made.get("images", ["k2", "k9", "k3"], vectors=True)
    assert sorted(found) == ["k2", "k3"]
    assert (found["k2"].content, found["k2"].record) == ("d", {"id": "i2"})
    assert torch.equal(found["k3"].vector, torch.tensor([3.0, 1.0, 0.0]))
    assert made.get("images", ["k3"])["k3"].vector is None
    assert made.get("images", []) == {}
    made.remove("images", ["k1", "k9"])
    assert made.count("images") == 2
    assert made.count("texts") == 0


def test_rows_go_in_batches(made, monkeypatch):
    batches = []
    own = made._client.upsert
    monkeypatch.setattr(
        made._client, "upsert", lambda name, rows, **k: batches.append(len(rows)) or own(name, rows, **k)
    )
    monkeypatch.setattr(milvus_rows, "BATCH_ROWS", 4)
    monkeypatch.setattr(milvus_rows, "SCANNED_AT_ONCE", 3)
    made.put("images", map(row, range(10)))
    assert batches == [4, 4, 2]
    monkeypatch.setattr(milvus_rows, "BATCH_BYTES", 1)
    made.put("images", map(row, range(3)))
    assert batches[3:] == [1, 1, 1]
    made.put("images", [])
    assert len(batches) == 6
    assert sorted(one.added for one in made.scan("images")) == list(range(10))
    assert [one.added for one in made.scan("images", "added >= 9", vectors=True)] == [9]


def test_texts_go_with_their_images(made):
    made.put(
        "texts", [row(n, owner="a" if n < 3 else "b", content="new" if n == 1 else "old") for n in range(6)]
    )
    made.remove_texts(["a"], but=["new"])
    assert sorted(one.key for one in made.scan("texts")) == ["k1", "k3", "k4", "k5"]
    made.remove_texts(["a", "b", "c"])
    assert made.count("texts") == 0
    with pytest.raises(AssertionError):
        made.remove_texts(['a"] or key != "'])


@pytest.mark.parametrize("searching", ["exact", "hnsw"])
def test_nearest_by_products(made, searching):
    made.put("images", map(row, range(5)))
    made.search_by(searching)
    assert made.searching() == searching
    (first, second) = made.nearest(
        "images", torch.tensor([[1.0, 0, 0], [-1.0, 1, 0]]), 2, "added < 4", searching
    )
    assert [(one.key, one.score) for one in first] == [("k3", 3.0), ("k2", 2.0)]
    assert [(one.key, one.score) for one in second] == [("k0", 1.0), ("k1", 0.0)]


def test_what_is_there_is_used_if_it_has_the_width(made):
    assert made.about() is None  # which is written last
    made.create(3)  # what is there is left
    with pytest.raises(ValueError, match="have 3 numbers, this model has 4: choose another #NAME"):
        made.create(4)


def test_errors_are_one_sentence(made, lite):
    with pytest.raises(
        ConnectionError, match=rf"{lite} \(.+\): Milvus is not responding\. No data was lost"
    ) as told:
        list(made.scan("images", "this is no expression ("))
    assert "\n" not in str(told.value)


def test_a_file_that_another_process_holds(tmp_path):
    lite = str(tmp_path / "pictures.db")
    code = f"import sys, pymilvus; c = pymilvus.MilvusClient({lite!r}); print('open', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(ConnectionError, match=r"pictures.db cannot be opened .*: close other processes"):
            MilvusRows(lite)
        other.communicate("")
    assert MilvusRows(lite).about() is None


def test_without_pymilvus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(ValueError, match=r"Milvus needs pymilvus: pip install .*\[milvus\]"):
        MilvusRows("http://127.0.0.1:1")


def test_without_milvus_lite(tmp_path, monkeypatch):
    pytest.importorskip("pymilvus", reason="an index in Milvus needs the extra milvus")
    own = builtins.__import__

    def missing(name, *given, **named):
        if name.startswith("milvus_lite"):
            raise ImportError(name)
        return own(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises((ValueError, ConnectionError), match=r"pip install .*\[milvus\]|milvus"):
        MilvusRows(str(tmp_path / "x.db"))
