"""What can go wrong with a Milvus server: one sentence, nothing lost, and the same call continues."""

import os
import secrets
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from index_cases import make_item
from servers import Milvus, milvus, small_disk

from selhn.base.errors import SelhnError
from selhn.export import towers_of
from selhn.search import Index

pytestmark = pytest.mark.milvus


def when_it_is_back(call):
    """What a call gives; connections are tried again after a while."""
    for _ in range(300):
        try:
            return call()
        except ConnectionError:
            time.sleep(0.1)
    return call()


def test_a_wrong_token(model, monkeypatch):
    with milvus("--authorization-enabled", "true") as server:
        for token in ("", "root:wrong", "nobody:Milvus"):
            monkeypatch.setenv("MILVUS_TOKEN", token)
            with pytest.raises(
                SelhnError, match=r": check the token in MILVUS_TOKEN, USER:PASSWORD$"
            ) as told:
                Index.create(towers_of(model), server.uri)
            assert "\n" not in str(told.value)
            assert "wrong" not in str(told.value)
        monkeypatch.setenv("MILVUS_TOKEN", "root:Milvus")
        index = Index.create(towers_of(model), server.uri)
        index.add(map(make_item, range(5)))
        client = index.store.rows._client
        client.create_user("reader", "Reader123")
        monkeypatch.setenv("MILVUS_TOKEN", "reader:Reader123")
        with pytest.raises(SelhnError, match="permission deny.*the user in MILVUS_TOKEN may not do this"):
            Index.load(server.uri, towers_of(model))
        client.update_password("root", "Milvus", "Other123")
        with pytest.raises(SelhnError, match="check the token"):
            index.add(map(make_item, range(5, 10)))
        monkeypatch.setenv("MILVUS_TOKEN", "root:Other123")
        again = Index.load(server.uri, towers_of(model))
        assert again.add(map(make_item, range(10)), existing="skip") == 5


def test_a_server_that_goes_away_in_the_middle(model, exact, same_answers, monkeypatch):
    monkeypatch.setattr("selhn.search.stores.store.ENCODED_AT_ONCE", 4)
    monkeypatch.setattr("selhn.search.stores.milvus_rows.TIMEOUT", 5.0)
    with milvus() as server:
        index = Index.create(towers_of(model), server.uri)

        def items():
            for number in range(20):
                if number == 15:
                    server.stop()
                yield make_item(number)

        for call in (
            lambda: index.add(items()),
            lambda: index.search("word3"),
            lambda: Index.load(server.uri, towers_of(model)),
        ):
            with pytest.raises(ConnectionError, match=r"Milvus is not responding\. No data was lost") as told:
                call()
            assert "\n" not in str(told.value)
        server.start()
        monkeypatch.setattr("selhn.search.stores.milvus_rows.TIMEOUT", 30.0)
        assert when_it_is_back(lambda: len(index)) == 12
        assert index.add(map(make_item, range(20)), existing="skip") == 8
        for find in ("image", "text"):
            same_answers(index, exact, "word3 word8", 50, find)
        assert index.num_texts == exact.num_texts


def test_a_full_disk(model, exact, same_answers, monkeypatch):
    monkeypatch.setattr("selhn.search.stores.store.ENCODED_AT_ONCE", 50)
    long = [make_item(number, metadata={"long": secrets.token_hex(15_000)}) for number in range(100, 1500)]
    with small_disk({}, "200m") as disk, tempfile.TemporaryDirectory(prefix="selhn") as folder:
        os.symlink(disk, Path(folder) / "data")
        server = Milvus(Path(folder))
        try:
            index = Index.create(towers_of(model), server.uri)
            index.add(map(make_item, range(20)))
            with pytest.raises(
                ConnectionError, match=r"Milvus has no space left\. No data was lost: free some on its disk"
            ) as told:
                index.add(long)
            assert "\n" not in str(told.value)
            written = len(index)
            assert 20 < written < 1420
            same_answers(index, exact, "word3 word8", 20, where="year < 2020")
            server.stop()
            subprocess.run(["mount", "-o", "remount,size=1g", disk], check=True)
            server.start()
            assert when_it_is_back(lambda: len(index)) == written
            assert index.add(long, existing="skip") == 1420 - written
            exact.add(long)
            for find in ("image", "text"):
                same_answers(index, exact, "word3 word8", 50, find)
            assert index.num_texts == exact.num_texts
        finally:
            server.stop()
