"""An index at each of the places where one can be, and beside it the same in memory."""

from itertools import count

import pytest
from servers import milvus, postgres
from store_cases import SERVERS

from selhn.export import towers_of
from selhn.search import Index


def close_all():
    """Let go of all servers of Milvus Lite in this process, and of the connections to them."""
    from milvus_lite.server_manager import server_manager_instance
    from pymilvus.client.connection_manager import ConnectionManager

    ConnectionManager.get_instance().close_all()
    server_manager_instance.release_all()


@pytest.fixture(scope="session")
def lite_file(tmp_path_factory):
    pytest.importorskip("pymilvus", reason="an index in Milvus needs the extra milvus")
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    yield str(tmp_path_factory.mktemp("lite") / "pictures.db")
    close_all()


@pytest.fixture(scope="session")
def server():
    pytest.importorskip("psycopg", reason="an index in PostgreSQL needs the extra postgres")
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def milvus_standalone():
    pytest.importorskip("pymilvus", reason="an index in Milvus needs the extra milvus")
    with milvus() as server:
        yield server


NUMBERS = count()


@pytest.fixture
def lite(lite_file):
    """A place in a file of Milvus Lite; the file is that of all tests, since opening it takes a while."""
    return f"{lite_file}#test{next(NUMBERS)}"


@pytest.fixture
def database(server):
    """A place in PostgreSQL."""
    return f"{server.uri()}#test{next(NUMBERS)}"


@pytest.fixture
def standalone(milvus_standalone):
    """A place in a Milvus server."""
    return f"{milvus_standalone.uri}#test{next(NUMBERS)}"


@pytest.fixture(params=["folder", *SERVERS])
def place(request, tmp_path):
    """Where there is no index yet: a folder, a file of Milvus Lite, PostgreSQL, a Milvus server."""
    names = {"milvus_lite": "lite", "postgres": "database", "milvus": "standalone"}
    return (
        request.getfixturevalue(names[request.param])
        if request.param in names
        else str(tmp_path / "photos.index")
    )


@pytest.fixture
def stored(place, model, make_item):
    index = Index.create(towers_of(model), place)
    index.add(make_item(number) for number in range(20))
    return index


@pytest.fixture
def exact(model, make_item):
    index = Index.create(towers_of(model))
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
