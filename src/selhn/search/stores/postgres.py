"""An index in PostgreSQL with pgvector: a schema with a table of images and one of texts.

A batch is written in one transaction, and texts go with their image, so that what is there is always whole.
Filters are conditions of SQL, see `postgres_filter.py`.
"""

import struct
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import Locked, MissingExtra, NotFound, SelhnError, pip_install
from selhn.search.filters import Filter
from selhn.search.items import PLURAL, Kind, Order, Record, date_of
from selhn.search.query import QueryVectors
from selhn.search.stores.postgres_filter import Condition
from selhn.search.stores.server import (
    REMOVED,
    REPEAT,
    TIMEOUT,
    Searching,
    ServerStore,
    key_of,
    reason,
    split_uri,
)
from selhn.search.stores.store import Answers, Batches, Stored

WIDEST_INLINE, WIDEST_HNSW = 1900, 2000
"""Widest vectors that fit into a page beside their record, and into a graph of pgvector."""
MOST_MEMORY = 2048
"""MB that the server may use while it makes a graph."""
_TABLES = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE SCHEMA {schema};
CREATE TABLE {schema}.selhn_index (about jsonb NOT NULL);
CREATE TABLE {schema}.images (number bigserial PRIMARY KEY, key text COLLATE "C" UNIQUE NOT NULL,
    id text COLLATE "C" NOT NULL, content text NOT NULL, date text COLLATE "C" NOT NULL, captions text[] NOT NULL,
    metadata jsonb NOT NULL, vector vector({width}) NOT NULL);
CREATE TABLE {schema}.texts (key text COLLATE "C" REFERENCES {schema}.images (key) ON DELETE CASCADE,
    place integer, vector vector({width}) NOT NULL, PRIMARY KEY (key, place));
ALTER TABLE {schema}.images ALTER vector SET STORAGE {storage}, SET (toast_tuple_target = 8160); -- a page: a filter
-- reads the metadata of every row, which takes ten times as long if they are kept elsewhere
ALTER TABLE {schema}.texts ALTER vector SET STORAGE {storage};
"""
_COPY = {
    "images (key, id, content, date, captions, metadata, vector)": "text text text text text[] jsonb bytea",
    "texts (key, place, vector)": "text int4 bytea",
}
_DELETE = "DELETE FROM {schema}.images WHERE key = ANY(%(keys)s)"
_NEAREST: Mapping[Kind, str] = {
    "image": """SELECT id, captions, metadata, found.vector <#> %(vector)s::vector AS distance, NULL
        FROM {schema}.images AS found WHERE {where} ORDER BY distance, number LIMIT %(limit)s""",
    "text": """SELECT id, captions, metadata, found.vector <#> %(vector)s::vector AS distance, captions[place + 1]
        FROM {schema}.texts AS found JOIN {schema}.images USING (key) WHERE {where}
        ORDER BY distance, number, place LIMIT %(limit)s""",
}
_ORDERS: Mapping[Order | None, str] = {
    None: "number",
    "oldest": "date = '', date, id",
    "newest": "date = '', date DESC, CASE WHEN date = '' THEN id END, id DESC",
}
_ERRORS: Mapping[str, tuple[type[Exception], str]] = {
    "UniqueViolation DeadlockDetected": (
        Locked,
        "another process is writing the same items, repeat the command",
    ),
    "InsufficientPrivilege": (SelhnError, "the user may not do this, ask whoever runs the server"),
    "ReadOnlySqlTransaction": (
        SelhnError,
        "this server is read-only, name the one that takes writes, or check its disk",
    ),
    "FeatureNotSupported UndefinedFile": (SelhnError, "the server has no pgvector, ask whoever runs it"),
    "DuplicateSchema": (SelhnError, "the schema of this name has something else in it, choose another #NAME"),
    "UndefinedTable InvalidSchemaName": (NotFound, REMOVED),
    "UntranslatableCharacter CharacterNotInRepertoire": (
        SelhnError,
        "the database cannot store a text, use one with UTF8 encoding",
    ),
    "DiskFull OutOfMemory": (
        ConnectionError,
        f"PostgreSQL has no space left. {REPEAT.format('check its disk')}",
    ),
    "QueryCanceled": (
        SelhnError,
        "the server stopped this request, which took longer than it allows (statement_timeout): ask for less at once, "
        "use --approximate hnsw, or ask whoever runs the server for more time",
    ),
    "OperationalError": (
        ConnectionError,
        f"PostgreSQL cannot be reached. {REPEAT.format('check that it is running')}",
    ),
}


def is_postgres(path: object) -> bool:
    """Whether a path is the URI of PostgreSQL: postgresql://USER@HOST/DATABASE."""
    return isinstance(path, str) and path.startswith(("postgresql://", "postgres://"))


class PostgresStore(ServerStore):
    """Images and their texts in a schema of PostgreSQL: #NAME after the address, or `selhn`."""

    product = "PostgreSQL"
    longest_record = 2**20

    def __init__(self, uri: str):
        super().__init__(uri)
        try:
            import psycopg
            from psycopg.types.json import Jsonb
        except ImportError:
            raise MissingExtra(f"PostgreSQL needs psycopg: {pip_install('postgres')}") from None
        self._psycopg, self._jsonb, self._idle = psycopg, Jsonb, list[Any]()
        self._address, self.name = split_uri(uri)
        try:
            named = psycopg.conninfo.conninfo_to_dict(self._address)
        except psycopg.ProgrammingError as wrong:
            raise SelhnError(
                f"{uri} is not an address ({reason(wrong)}): use postgresql://USER@HOST/DATABASE"
            ) from None
        if "password" in named:
            raise SelhnError(
                "others can see a password in an address: put it into PGPASSWORD or ~/.pgpass instead"
            )
        weakref.finalize(self, _close, self._idle)

    def about(self) -> dict[str, Any] | None:
        there = "SELECT FROM pg_tables WHERE schemaname = %(name)s AND tablename = 'selhn_index'"
        found = self._ask(there, {"name": self.name}) and self._ask("SELECT about FROM {schema}.selhn_index")
        return found[0][0] if found else None

    def make(self, width: int, about: Mapping[str, Any]) -> None:
        storage = "PLAIN" if width <= WIDEST_INLINE else "EXTERNAL"
        with self._connected() as connection:
            connection.execute(self._sql(_TABLES, width=str(int(width)), storage=storage))
            connection.execute(
                self._sql("INSERT INTO {schema}.selhn_index VALUES (%s)"), (self._jsonb(dict(about)),)
            )

    def searching(self) -> Searching:
        there = "SELECT FROM pg_indexes WHERE schemaname = %(name)s AND indexname = 'images_hnsw'"
        return "hnsw" if self._ask(there, {"name": self.name}) else "exact"

    def search_by(self, searching: Searching) -> None:
        if searching == "hnsw" and self.identity.width > WIDEST_HNSW:
            raise SelhnError(
                f"hnsw takes vectors of at most {WIDEST_HNSW:,} numbers, these have {self.identity.width:,}: "
                "use exact search, --approximate exact"
            )
        # A graph that does not fit into memory takes several times as long.
        memory = min(MOST_MEMORY, 64 + self.count() * (4 * self.identity.width + 512) // 2**20)
        with self._connected() as connection:
            connection.execute(self._sql("DROP INDEX IF EXISTS {schema}.images_hnsw, {schema}.texts_hnsw"))
            connection.execute("SELECT set_config('maintenance_work_mem', %s, true)", (f"{memory}MB",))
            for table in PLURAL.values() if searching == "hnsw" else ():
                made = "CREATE INDEX {table}_hnsw ON {schema}.{table} USING hnsw (vector vector_ip_ops)"
                connection.execute(self._sql(made, table=table))

    def put(self, batches: Batches) -> int:
        written = 0
        for batch in batches:
            images, texts = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
            for item, record, image, own_texts, _ in batch:
                if b"\\u0000" in record.to_line().replace(b"\\\\", b""):
                    raise SelhnError(
                        f"{record.id!r} has a NUL character, which PostgreSQL cannot store: remove it"
                    )
                key, known = key_of(record.id), (item.content(record), date_of(record), list(record.captions))
                images.append((key, record.id, *known, self._jsonb(dict(record.metadata)), _packed(image)))
                texts += [(key, place, _packed(vector)) for place, vector in enumerate(own_texts)]
            with self._connected() as connection:
                connection.execute(self._sql(_DELETE), {"keys": [row[0] for row in images]})
                for (table, types), rows in zip(_COPY.items(), (images, texts)):
                    sql = self._sql("COPY {schema}.{table} FROM STDIN (FORMAT BINARY)", table=table)
                    with connection.cursor().copy(sql) as copy:
                        copy.set_types(types.split())
                        for row in rows:
                            copy.write_row(row)
            self.generation += len(batch)
            written += len(batch)
        return written

    def get(self, ids: Iterable[str], vectors: bool = False) -> dict[str, Stored]:
        names, vector = list(ids), "vector_send(vector)" if vectors else "NULL"
        sql = (
            "SELECT id, captions, metadata, content, {vector} FROM {schema}.images WHERE key = ANY(%(keys)s)"
        )
        rows = self._ask(sql, {"keys": list(map(key_of, names))}, vector=vector)
        found = {
            row[0]: Stored(_record(row), row[3], None if row[4] is None else _unpacked(row[4]))
            for row in rows
        }
        return {name: found[name] for name in names if name in found}

    def delete(self, ids: Sequence[str]) -> None:
        with self._connected() as connection:
            connection.execute(self._sql(_DELETE), {"keys": list(map(key_of, ids))})
        self.generation += len(ids)

    def scan(
        self, filter: Filter | None = None, order: Order | None = None, first: int = 0
    ) -> Iterator[Record]:
        if order not in _ORDERS:
            raise SelhnError(f'order is {order!r}: choose "newest" or "oldest"')
        condition = Condition(filter)
        skipped = 0 if condition.exact else first
        sql = "SELECT id, captions, metadata FROM {schema}.images WHERE {where} ORDER BY {order} OFFSET %(first)s"
        with self._connected() as connection, connection.cursor("records") as cursor:
            cursor.itersize = 1000
            sql = self._sql(sql, where=condition.sql, order=_ORDERS[order])
            every = map(_record, cursor.execute(sql, {**condition.values, "first": first - skipped}))
            yield from islice((record for record in every if filter is None or filter(record)), skipped, None)

    def count(self, kind: Kind = "image", filter: Filter | None = None) -> int:
        condition = Condition(filter)
        if not condition.exact:
            return sum(1 if kind == "image" else len(record.captions) for record in self.scan(filter))
        what = "count(*)" if kind == "image" else "coalesce(sum(cardinality(captions)), 0)"
        sql = "SELECT {what} FROM {schema}.images WHERE {where}"
        return int(self._ask(sql, condition.values, what=what, where=condition.sql)[0][0])

    def state(self) -> tuple[Any, ...]:
        return self._ask("SELECT count(*), max(number) FROM {schema}.images")[0]

    def nearest(self, queries: QueryVectors, kind: Kind, k: int, filter: Filter | None) -> Answers:
        """More rows are requested until k pass the filter; if SQL can express all of it, the first k do."""
        assert queries.products is not None
        condition = Condition(filter)
        for vector in map(str, queries.products.tolist()):
            limit, exactly = k, self.found_by == "exact"
            while True:
                rows = self._nearest(kind, vector, limit, condition, exactly)
                found = [(_record(row), *row[3:]) for row in rows]
                hits = [one for one in found if filter is None or filter(one[0])]
                if len(hits) >= k or (exactly and len(rows) < limit):
                    break
                # A graph gives up at some point, and then all rows are compared.
                limit, exactly = (limit, True) if len(rows) < limit else (4 * limit, exactly)
            yield (record.hit(-distance, caption) for record, distance, caption in hits[:k])

    def _nearest(self, kind: Kind, vector: str, limit: int, condition: Condition, exactly: bool) -> list[Any]:
        settings = {
            "hnsw.iterative_scan": "strict_order",
            "hnsw.ef_search": str(min(1000, max(64, 2 * limit))),
        }
        settings = {"enable_indexscan": "off"} if exactly else settings
        with self._connected() as connection:
            for setting in settings.items() if self.found_by == "hnsw" else ():
                connection.execute("SELECT set_config(%s, %s, true)", setting)
            sql = self._sql(_NEAREST[kind], where=condition.sql)
            return connection.execute(sql, {**condition.values, "vector": vector, "limit": limit}).fetchall()

    def _sql(self, text: str, **parts: str) -> Any:
        """SQL with the name of the schema, and other parts from this file and `postgres_filter.py`."""
        sql = self._psycopg.sql
        return sql.SQL(text).format(
            schema=sql.Identifier(self.name), **{name: sql.SQL(part) for name, part in parts.items()}
        )

    def _ask(self, text: str, values: Mapping[str, Any] | None = None, **parts: str) -> list[Any]:
        with self._connected() as connection:
            return connection.execute(self._sql(text, **parts), values).fetchall()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A transaction, on a connection that no other thread uses; errors of PostgreSQL in our words."""
        transaction = ExitStack()
        try:
            connection = self._begun(transaction)
            try:
                with transaction:
                    yield connection
            finally:
                if connection.closed:
                    _close(self._idle)  # the server was stopped: the others are useless too
                else:
                    self._idle.append(connection)
        except self._psycopg.Error as wrong:
            if wrong.pgconn is not None and wrong.pgconn.used_password:
                sentence = "check the user, and the password in PGPASSWORD or ~/.pgpass"
                raise SelhnError(f"{self.path} ({reason(wrong)}): {sentence}") from None
            for names, (kind, sentence) in _ERRORS.items():
                if isinstance(wrong, tuple(getattr(self._psycopg.errors, name) for name in names.split())):
                    raise kind(f"{self.path} ({reason(wrong)}): {sentence}") from None
            raise

    def _begun(self, transaction: ExitStack) -> Any:
        """A connection on which a transaction has begun: an idle one, unless the server has closed it, or a new one."""
        alive: dict[str, Any] = {
            "connect_timeout": TIMEOUT,
            "tcp_user_timeout": 1000 * TIMEOUT,
            "application_name": "selhn",
        }
        while True:
            try:
                connection, is_new = self._idle.pop(), False
            except IndexError:
                connection = self._psycopg.connect(
                    self._address, autocommit=True, prepare_threshold=None, **alive
                )
                is_new = True
            try:
                transaction.enter_context(connection.transaction())
                return connection
            except self._psycopg.OperationalError:
                if is_new or not connection.closed:
                    raise


def _close(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


def _packed(vector: Float[Tensor, " d"]) -> bytes:
    """A vector in the binary format of pgvector."""
    return struct.pack(">HH", len(vector), 0) + vector.detach().cpu().numpy().astype(">f4").tobytes()


def _unpacked(sent: bytes) -> Float[Tensor, " d"]:
    return torch.from_numpy(np.frombuffer(sent, ">f4", offset=4).astype(np.float32))


def _record(row: Sequence[Any]) -> Record:
    return Record(row[0], tuple(row[1]), row[2])
