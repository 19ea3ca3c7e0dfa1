"""Collections in Milvus: rows with a key, a vector and a record, written in batches; its errors in our words.

NAME_images, NAME_texts and NAME_about have the same fields. Keys are digests, so that no name is ever part of
an expression. `content` distinguishes versions of an item: a text counts only if its image has the same.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import MissingExtra, NotFound, SelhnError, pip_install
from selhn.search.items import Record
from selhn.search.stores.server import REMOVED, REPEAT, TIMEOUT, Searching, reason, split_uri
from selhn.search.stores.store import ENCODED_AT_ONCE

IDENTITY = "identity"
BATCH_BYTES, BATCH_ROWS = 8 * 2**20, 2000
"""Most bytes and rows that are written together; a server takes 64 MiB per request."""
MOST_HITS = 16_384
"""Most rows that Milvus returns for one query."""
SCANNED_AT_ONCE = 1000
KEY_LENGTH = 80
OWN = "Session"
"""A read sees what this process has written; waiting for what others write at the moment takes 200 ms each time."""
UNTIL_DONE = None
"""Timeout of calls that take longer for more rows; a dead server is given up after four minutes."""
HNSW = {"M": 16, "efConstruction": 200}
Which = Literal["images", "texts", "about"]
_FIELDS = ["key", "owner", "content", "added", "record"]
_SERVER = re.compile(r"(?:https?|tcp)://|unix:")
_MISSING, _UNLOADED = 100, 101  # collections, in the codes of Milvus
_ERRORS: Mapping[str, tuple[type[Exception], str]] = {
    "UNAUTHENTICATED": (SelhnError, "check the token in MILVUS_TOKEN, USER:PASSWORD"),
    "PERMISSION_DENIED": (
        SelhnError,
        "the user in MILVUS_TOKEN may not do this, ask whoever runs the server",
    ),
    rf"{_MISSING}\b": (NotFound, REMOVED),
    ".*([Nn]o space left|quota exceeded)": (
        ConnectionError,
        f"Milvus has no space left. {REPEAT.format('free some on its disk, start it again')}",
    ),
    "": (ConnectionError, f"Milvus is not responding. {REPEAT.format('check that it is running')}"),
}
"""Our errors, by the code and message of Milvus; the first that matches is raised."""


def is_milvus(path: object) -> bool:
    """Whether a path is a Milvus URI: a server, http://host:19530, or a Milvus Lite file, "pictures.db"."""
    return isinstance(path, str) and (is_server(path) or path.partition("#")[0].endswith(".db"))


def is_server(uri: str) -> bool:
    """Whether a URI is that of a server."""
    return _SERVER.match(uri) is not None


@dataclass(frozen=True)
class Row:
    """One vector with what is known about it."""

    key: str
    owner: str
    """The key of its image."""
    content: str
    """Digest of what the item was made from."""
    added: int
    """When it was added, in microseconds; unique per writer."""
    record: dict[str, Any]
    vector: Float[Tensor, " d"] | None = None
    score: float = 0.0

    @property
    def item(self) -> Record:
        """The record of its item; the captions only if it is the row of the image."""
        return Record(self.record["id"], tuple(self.record.get("captions", ())), self.record["metadata"])


class MilvusRows:
    """The collections at a URI; #NAME after it chooses their name. MILVUS_TOKEN is the token of a server."""

    def __init__(self, uri: str):
        self.uri, (address, self.name) = uri, split_uri(uri)
        try:
            import grpc
            import pymilvus
        except ImportError:
            raise MissingExtra(f"Milvus needs pymilvus: {pip_install('milvus')}") from None
        for logger in ("pymilvus", "milvus_lite"):  # our own errors say what went wrong
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        self._errors = (pymilvus.MilvusException, grpc.RpcError)
        self._types = pymilvus.DataType
        # A file gives rows in the order of their keys only to iterators.
        self._by_key = {} if is_server(address) else {"iterator": "True"}
        if not is_server(address):
            address = os.path.abspath(os.path.expanduser(address))
        token = os.environ.get("MILVUS_TOKEN", "")
        try:
            self._client = pymilvus.MilvusClient(address, token=token, timeout=TIMEOUT)
        except self._errors as wrong:
            if is_server(address):
                raise self._explained(wrong) from None
            raise ConnectionError(
                f"{address} cannot be opened ({reason(wrong.message)}): close other processes that have it open, "
                "and check that it is a Milvus Lite file"
            ) from None
        except ImportError:  # a file, and no Milvus Lite
            raise MissingExtra(
                f"a Milvus Lite file needs Milvus Lite: {pip_install('milvus')}, or name a server"
            ) from None

    @cached_property
    def finds_within(self) -> bool:
        """Whether it knows patterns with % at both ends, as servers do since 2.4."""
        with self._errors_explained():
            found = re.match(r"v?(\d+)\.(\d+)", self._client.get_server_version(timeout=TIMEOUT))
        return found is None or (int(found[1]), int(found[2])) >= (2, 4)

    def about(self) -> dict[str, Any] | None:
        """What an index says about itself, which is written last; None if there is no index."""
        is_there = self._call("has_collection", "about") and self._width("about")
        found = self.get("about", [IDENTITY]) if is_there else {}
        return found[IDENTITY].record if found else None

    def create(self, width: int) -> None:
        """The collections, empty, searched exactly; those that exist after an interruption are used."""
        for which, own_width in (("images", width), ("texts", width), ("about", 2)):
            if self._call("has_collection", which):
                continue
            schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
            for name in ("key", "owner", "content"):
                schema.add_field(name, self._types.VARCHAR, is_primary=name == "key", max_length=KEY_LENGTH)
            schema.add_field("added", self._types.INT64)
            schema.add_field("record", self._types.JSON)
            schema.add_field("vector", self._types.FLOAT_VECTOR, dim=own_width)
            self._call("create_collection", which, schema=schema, consistency_level=OWN)
            self._call("create_index", which, index_params=self._index("exact"), sync=False)
            self._call("load_collection", which, _async=True)
        for which in get_args(Which):
            self._call("load_collection", which)
        if (found := self._width("images")) != width:
            raise SelhnError(
                f"the vectors at {self.uri} have {found} numbers, this model has {width}: choose another #NAME"
            )

    def _width(self, which: Which) -> int:
        """Numbers of a vector, in a collection that has our fields."""
        fields = {
            field["name"]: field["params"] for field in self._call("describe_collection", which)["fields"]
        }
        if fields.keys() != {*_FIELDS, "vector"}:
            raise SelhnError(
                f"{self.uri}: the collection {self.name}_{which} has something else in it, choose another #NAME"
            )
        return int(fields["vector"]["dim"])

    def searching(self) -> Searching:
        kind = self._call("describe_index", "images", index_name="vector")["index_type"]
        return "exact" if kind == "FLAT" else "hnsw"

    def search_by(self, searching: Searching) -> None:
        for which in ("images", "texts"):
            self._call("flush", which, timeout=UNTIL_DONE)
            self._call("release_collection", which)
            self._call("drop_index", which, index_name="vector")
            self._call("create_index", which, index_params=self._index(searching), timeout=UNTIL_DONE)
            self._call("load_collection", which, timeout=UNTIL_DONE)

    def put(self, which: Which, rows: Iterable[Row]) -> None:
        """Write rows, replacing those with the same keys."""
        batch: list[dict[str, Any]] = []
        size = 0
        for row in rows:
            assert row.vector is not None
            vector = row.vector.detach().cpu().float().numpy()
            batch.append({**{name: getattr(row, name) for name in _FIELDS}, "vector": vector})
            size += vector.nbytes + len(str(row.record))
            if size > BATCH_BYTES or len(batch) >= BATCH_ROWS:
                self._call("upsert", which, batch)
                batch, size = [], 0
        if batch:
            self._call("upsert", which, batch)

    def get(self, which: Which, keys: Iterable[str], vectors: bool = False) -> dict[str, Row]:
        """Rows by their keys; those that are not there are left out."""
        found: dict[str, Row] = {}
        fields = [*_FIELDS, "vector"] if vectors else _FIELDS
        for some in _chunks(keys):
            rows = self._call("get", which, ids=some, output_fields=fields, consistency_level=OWN)
            found.update({row["key"]: _row(row) for row in rows})
        return found

    def remove(self, which: Which, keys: Iterable[str]) -> None:
        some: list[str] = []
        for some in _chunks(keys):
            self._call("delete", which, ids=some)
        if some:  # a server returns no time for deletions, so reads could miss them
            self.count(which, others=True)

    def remove_texts(self, owners: Iterable[str], but: Sequence[str] = ()) -> None:
        """Remove the texts of some images, except those with a content in `but`."""
        kept = f" and content not in {_list(but)}" if but else ""
        for some in _chunks(owners):
            self.remove("texts", [row.key for row in self.scan("texts", f"owner in {_list(some)}{kept}")])

    def scan(self, which: Which, expression: str = "", vectors: bool = False) -> Iterator[Row]:
        """All rows, sorted by key. The client's iterator would wait for other writers at every step."""
        asked = {"output_fields": [*_FIELDS, "vector"] if vectors else _FIELDS, "limit": SCANNED_AT_ONCE}
        asked |= {"consistency_level": OWN, "reduce_stop_for_best": True, **self._by_key}
        last, behind = "", f" and ({expression})" if expression else ""
        while batch := self._call("query", which, filter=f'key > "{last}"{behind}', **asked):
            yield from map(_row, batch)
            last = max(row["key"] for row in batch)

    def count(self, which: Which, expression: str = "", others: bool = False) -> int:
        """Number of rows; with `others`, including what other processes have written by now."""
        asked = {"output_fields": ["count(*)"], "consistency_level": "Strong" if others else OWN}
        return int(self._call("query", which, filter=expression, **asked)[0]["count(*)"])

    def nearest(
        self, which: Which, queries: Float[Tensor, "Q d"], limit: int, expression: str, searching: Searching
    ) -> list[list[Row]]:
        """The rows of the highest products with each query; `limit` is at most `MOST_HITS`."""
        params = {"ef": min(32_768, max(64, 2 * limit))} if searching == "hnsw" else {}
        found = self._call(
            "search",
            which,
            data=list(queries.detach().cpu().float().numpy()),
            anns_field="vector",
            limit=limit,
            filter=expression,
            output_fields=_FIELDS,
            search_params={"metric_type": "IP", "params": params},
            consistency_level=OWN,
        )
        return [[_row(hit["entity"], hit["distance"]) for hit in hits] for hits in found]

    def _index(self, searching: Searching) -> Any:
        index = self._client.prepare_index_params()
        kind, params = ("FLAT", {}) if searching == "exact" else ("HNSW", HNSW)
        index.add_index("vector", index_type=kind, index_name="vector", metric_type="IP", params=params)
        return index

    def _call(self, method: str, which: str, *given: Any, **named: Any) -> Any:
        """Call a method of the client that takes the name of a collection first."""
        named = {"timeout": TIMEOUT, **named}
        ask = partial(getattr(self._client, method), f"{self.name}_{which}", *given, **named)
        with self._errors_explained():
            try:
                return ask()
            except self._errors as wrong:
                if getattr(wrong, "code", None) != _UNLOADED:
                    raise
            for one in get_args(Which):  # after a restart of the server
                self._client.load_collection(f"{self.name}_{one}", timeout=UNTIL_DONE)
            return ask()

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except self._errors as wrong:
            raise self._explained(wrong) from None

    def _explained(self, wrong: Any) -> Exception:
        """An error of Milvus in our words."""
        if wrong.__cause__ is not None and hasattr(wrong.__cause__, "details"):
            wrong = wrong.__cause__  # what a server said, which the client does not repeat when it connects
        said = reason(wrong.details() if hasattr(wrong, "details") else wrong.message)
        code = wrong.code().name if callable(wrong.code) else wrong.code
        kind, sentence = next(known for sign, known in _ERRORS.items() if re.match(sign, f"{code} {said}"))
        return kind(f"{self.uri} ({said}): {sentence}")


def _row(found: Any, score: float = 0.0) -> Row:
    vector = found.get("vector")
    own = None if vector is None else torch.from_numpy(np.array(vector, dtype=np.float32))
    return Row(**{name: found[name] for name in _FIELDS}, vector=own, score=score)


def _chunks(keys: Iterable[str], size: int = ENCODED_AT_ONCE) -> Iterator[list[str]]:
    walk = iter(dict.fromkeys(keys))
    while some := list(islice(walk, size)):
        yield some


def _list(digests: Sequence[str]) -> str:
    """Digests in brackets; they have letters and digits only."""
    assert all(digest.isalnum() for digest in digests)
    return "[" + ", ".join(f'"{digest}"' for digest in digests) + "]"
