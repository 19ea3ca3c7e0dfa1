"""What is special about an index in PostgreSQL: transactions, connections, and its errors in one sentence."""

import secrets
import signal
import sys
import threading
import time

import pytest
from model_cases import make_model
from servers import postgres, small_disk

from selhn.base.errors import Locked, MissingExtra, NotFound, SelhnError
from selhn.export import towers_of
from selhn.search import Index, Item, is_milvus, is_uri
from selhn.search.stores.postgres import is_postgres
from selhn.search.stores.postgres_filter import Condition
from selhn.search.stores.server import key_of
from selhn.search.where import read_filter


@pytest.fixture
def made(database, model, make_item):
    index = Index.create(towers_of(model), database)
    index.add(make_item(number) for number in range(20))
    return index


def execute(index, sql):
    with index.store._connected() as connection:
        connection.execute(index.store._sql(sql))


@pytest.mark.parametrize(
    "place", ["postgresql://host/photos", "postgres://me@host:5432/photos#cats", "postgresql:///x"]
)
def test_places(place):
    assert is_postgres(place)
    assert is_uri(place)
    assert not is_milvus(place)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (
            "postgresql://me:secret@host/photos",
            "others can see a password in an address: put it into PGPASSWORD",
        ),
        ("postgresql:///photos?password=secret", "others can see a password"),
        ("postgresql://host/photos?nonsense=1", "is not an address .*: use postgresql://USER@HOST/DATABASE"),
    ],
)
def test_addresses_that_are_refused(place, sentence):
    pytest.importorskip("psycopg", reason="an index in PostgreSQL needs the extra postgres")
    with pytest.raises(SelhnError, match=sentence) as told:
        Index.exists(place)
    assert "secret" not in str(told.value)


def test_without_psycopg(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"PostgreSQL needs psycopg: pip install .*\[postgres\]"):
        Index.exists("postgresql://host/photos")


def test_no_value_and_no_field_becomes_part_of_the_sql():
    hostile = "x'); DROP SCHEMA selhn; --"
    for operator in ("=", "!=", "<", "contains", "like"):
        condition = Condition(read_filter({hostile: {operator: hostile}}))
        assert "DROP" not in condition.sql
        assert all(f"%({name})s" in condition.sql for name in condition.values)
        assert hostile in condition.values.values()


@pytest.mark.parametrize(
    ("where", "exact"),
    [
        ("year = 2020 and not folder = trip", True),
        ("taken >= 2019-06 or date < 2018", True),
        ("tags contains dog and file like '*.jp?g'", True),
        ("exif.iso != 100", True),
        ({"year": [1, 2, None]}, True),
        ("folder < trip", False),  # an error for those whose folder is a time
        ("file like '[ab]*'", False),
        ({"a": ["x"] * 501}, False),
        ({"a": "b\0c"}, False),
        ({"a": float("inf")}, False),
    ],
)
def test_what_sql_can_say(where, exact):
    assert Condition(read_filter(where)).exact is exact


def test_more_rows_are_asked_for_until_enough_pass(made, exact, same_answers):
    for find in ("image", "text"):
        found = same_answers(
            made, exact, "word3 word8", 3, find, where='not id like "item[1]*" and year > 2001'
        )
        assert len(found) == 3


def test_by_a_graph_and_a_filter_that_leaves_little(made, exact, same_answers, make_item):
    for index in (made, exact):
        index.add(make_item(number) for number in range(100, 400))
    made.approximate("hnsw")
    for index in (made, exact):
        index.add([make_item(50)])  # the graph grows with the index
    execute(made, "SET hnsw.max_scan_tuples = 1")  # of the one connection that this thread uses
    for find in ("image", "text"):
        assert len(same_answers(made, exact, "word3 word8", 5, find, where="year in (2003, 2050, 2399)")) >= 3
        assert same_answers(made, exact, "word3 word8", 5, find)
    wide = Index.create(towers_of(make_model("rvse", dim=2048)), f"{made.path}_wide")
    wide.add([make_item(1)])
    assert wide.search("word3")
    with pytest.raises(SelhnError, match="hnsw takes vectors of at most 2,000 numbers"):
        wide.approximate("hnsw")
    assert wide.found_by == "exact"


def test_metadata_are_kept_beside_their_vector(database, make_item):
    """PostgreSQL puts what makes a row longer than 2 KB elsewhere, and a filter reads it of every row."""
    index = Index.create(towers_of(make_model("rvse", dim=600)), database)
    index.add([make_item(1, metadata={"long": secrets.token_hex(500)})])
    elsewhere = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = to_regclass(%(name)s)"
    assert index.store._ask(elsewhere, {"name": f"{index.store.name}.images"}) == [(0,)]


def test_a_batch_is_written_whole_or_not_at_all(made, make_item, monkeypatch):
    def stopped(vector):
        raise KeyboardInterrupt

    monkeypatch.setattr("selhn.search.stores.store.ENCODED_AT_ONCE", 4)
    with pytest.raises(
        SelhnError, match=r"'x' has a NUL character, which PostgreSQL cannot store: remove it"
    ):
        made.add([*map(make_item, range(30, 36)), make_item(40, "x", captions=("a\0b",)), make_item(41)])
    assert len(made) == 24, "the first batch is there"
    with pytest.raises(SelhnError, match="NUL"):
        made.add([Item("y", make_item(1).regions, metadata={"a\\": ["\0"]})])
    made.add([Item("z", make_item(1).regions, metadata={"a": "\\u0000"})])
    assert made.get("z").metadata == {"a": "\\u0000"}
    with monkeypatch.context() as patch:
        patch.setattr("selhn.search.stores.postgres._packed", stopped)
        with pytest.raises(KeyboardInterrupt):
            made.add([make_item(3, captions=("word1",))], existing="replace")
    assert made.get("item3").captions == make_item(3).captions


def test_two_writers_of_the_same_item(made, model, make_item):
    other, told = Index.load(made.path, towers_of(model)), []

    def write():
        with pytest.raises(Locked, match="another process is writing the same items, repeat the command"):
            other.add([make_item(60)])
        told.append(True)

    writer = threading.Thread(target=write)
    with made.store._connected() as connection:
        names = "key, id, content, date, captions, metadata, vector"
        sql = "INSERT INTO {schema}.images ({names}) SELECT %s, {others} FROM {schema}.images LIMIT 1"
        connection.execute(made.store._sql(sql, names=names, others=names[5:]), (key_of("item60"),))
        writer.start()
        waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while not connection.execute(waits).fetchall():
            time.sleep(0.01)
    writer.join()
    assert told
    assert len(other) == 21


def test_a_server_that_can_only_be_read(made, server, model, make_item):
    """A copy of another server; some make the first one such, too, when its disk is nearly full."""
    execute(made, "CREATE ROLE reader LOGIN SUPERUSER")
    execute(made, "ALTER ROLE reader SET default_transaction_read_only = on")
    index = Index.load(f"{server.uri('reader')}#{made.store.name}", towers_of(model))
    assert index.search("word3")
    with pytest.raises(
        SelhnError, match=r"read-only.*this server is read-only, name the one that takes writes"
    ):
        index.add([make_item(60)])


def test_searches_in_several_threads(made, exact):
    wanted = [hit.id for hit in exact.search("word3 word8")]
    found = []
    threads = [threading.Thread(target=lambda: found.append(made.search("word3 word8"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[hit.id for hit in hits] for hits in found] == [wanted] * 8
    assert 1 <= len(made.store._idle) <= 8


def test_what_others_do_to_the_schema(made, database, server, model):
    execute(made, "CREATE ROLE stranger LOGIN")
    with pytest.raises(SelhnError, match=r"permission denied.*the user may not do this"):
        Index.create(towers_of(model), f"{server.uri('stranger')}#theirs")
    execute(made, "CREATE SCHEMA taken")
    with pytest.raises(
        SelhnError, match="the schema of this name has something else in it, choose another #NAME"
    ):
        Index.create(towers_of(model), f"{server.uri()}#taken")
    execute(made, "DROP SCHEMA {schema} CASCADE")
    with pytest.raises(NotFound, match="the index was removed, make it again"):
        made.search("word3")
    assert not Index.exists(database)


def test_a_request_that_takes_longer_than_the_server_allows(own_server, model, make_item):
    index = Index.create(towers_of(model), own_server.uri())
    index.add(map(make_item, range(5)))
    execute(index, "SET statement_timeout = 1")  # on the only connection
    index.store._sql = lambda *text, **parts: "SELECT pg_sleep(9)"
    with pytest.raises(SelhnError, match="statement_timeout") as told:
        len(index)
    assert not isinstance(told.value, ConnectionError)


def test_connections_that_the_server_closed_meanwhile_are_no_error(own_server, model, make_item):
    index = Index.create(towers_of(model), own_server.uri())
    index.add(map(make_item, range(5)))
    walks = [index.records() for _ in range(3)]  # each on a connection of its own
    assert all(next(walk).id == "item0" for walk in walks)
    assert all(len(list(walk)) == 4 for walk in walks)
    assert len(index.store._idle) > 1
    other = Index.load(own_server.uri(), towers_of(model))
    execute(other, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'selhn' "
            "AND pid <> pg_backend_pid()")  # fmt: skip
    assert len(index.search("word3", k=5)) == 5
    index.delete(["item1"])
    assert len(index) == 4


@pytest.fixture
def own_server():
    """A server that a test may stop."""
    pytest.importorskip("psycopg", reason="an index in PostgreSQL needs the extra postgres")
    with postgres() as server:
        yield server


def test_a_server_that_goes_away_in_the_middle_and_comes_back(
    own_server, model, make_item, exact, same_answers
):
    index = Index.create(towers_of(model), own_server.uri())

    def items():
        for number in range(20):
            if number == 15:
                own_server.stop(signal.SIGQUIT)  # as if it were killed
            yield make_item(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selhn.search.stores.store.ENCODED_AT_ONCE", 4)
        for call in (
            lambda: index.add(items()),
            lambda: index.search("word3"),
            lambda: index.delete(["item3"]),
            lambda: index.refresh(),
            lambda: list(index.records()),
            lambda: Index.load(own_server.uri(), towers_of(model)),
        ):
            with pytest.raises(
                ConnectionError, match=r"PostgreSQL cannot be reached\. No data was lost"
            ) as told:
                call()
            assert "\n" not in str(told.value)
        own_server.start()
        assert len(index) == 12
        assert index.add(map(make_item, range(20)), existing="skip") == 8
    same_answers(index, exact, "word3 word8", 30)
    same_answers(index, exact, "word3 word8", 30, "text")


def test_a_wrong_password_and_a_server_that_refuses(own_server, model, make_item, monkeypatch):
    index = Index.create(towers_of(model), own_server.uri())
    execute(index, "CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right'")
    rules = own_server.folder / "data" / "pg_hba.conf"
    rules.write_text(f"local all guarded scram-sha-256\n{rules.read_text()}")
    own_server.stop()
    own_server.start()
    for password in (None, "wrong"):
        if password:
            monkeypatch.setenv("PGPASSWORD", password)
        with pytest.raises(
            SelhnError, match=r"check the user, and the password in PGPASSWORD or ~/\.pgpass$"
        ):
            Index.load(own_server.uri("guarded"), towers_of(model))
    monkeypatch.setenv("PGPASSWORD", "right")
    assert Index.load(own_server.uri("guarded"), towers_of(model)).add([make_item(1)]) == 1
    with pytest.raises(ConnectionError, match='role "nobody" does not exist'):
        Index.exists(own_server.uri("nobody"))


def test_a_full_disk(own_server, model, make_item):
    """The tables are on a small one; the log of PostgreSQL is not, for when that is full, the server ends."""
    import psycopg

    with (
        small_disk(own_server.user, "2m") as folder,
        psycopg.connect(own_server.uri(), autocommit=True) as connection,
    ):
        connection.execute(psycopg.sql.SQL("CREATE TABLESPACE small LOCATION {}").format(folder))
        connection.execute("ALTER ROLE postgres SET default_tablespace = small")
        index = Index.create(towers_of(model), own_server.uri())
        index.add(make_item(number) for number in range(20))
        long = (make_item(number, metadata={"long": secrets.token_hex(2**18)}) for number in range(100, 110))
        with pytest.raises(
            ConnectionError, match=r"PostgreSQL has no space left\. No data was lost: check its disk"
        ) as told:
            index.add(long)
        assert "\n" not in str(told.value)
        assert len(index) == 20
        assert index.search(like="item3", k=2, where="year < 2020")
        assert index.add([make_item(20)]) == 1, "what is small still fits"
        own_server.stop()
