"""An index in a file of Milvus Lite, and beside it the same in memory."""

import pytest

from selhn.search import Index


def close_all():
    """Let go of all servers of Milvus Lite in this process, and of the connections to them."""
    from milvus_lite.server_manager import server_manager_instance
    from pymilvus.client.connection_manager import ConnectionManager

    ConnectionManager.get_instance().close_all()
    server_manager_instance.release_all()


@pytest.fixture
def uri(tmp_path):
    pytest.importorskip("pymilvus", reason="an index in Milvus needs the extra milvus")
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    yield str(tmp_path / "pictures.db")
    close_all()


@pytest.fixture
def remote(uri, model, make_item):
    index = Index.create(model, uri)
    index.add(make_item(number) for number in range(20))
    return index


@pytest.fixture
def exact(model, make_item):
    index = Index.create(model)
    index.add(make_item(number) for number in range(20))
    return index


@pytest.fixture
def same_answers():
    """Whether two indices answer with the same items in the same order, and scores that differ by less than 1e-5."""

    def check(first, second, *asked, **settings):
        hits, others = first.search(*asked, **settings), second.search(*asked, **settings)
        assert [(hit.id, hit.kind, hit.name, hit.captions) for hit in hits] == [
            (hit.id, hit.kind, hit.name, hit.captions) for hit in others
        ]
        assert [hit.metadata for hit in hits] == [hit.metadata for hit in others]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in others], abs=1e-5)
        return hits

    return check
