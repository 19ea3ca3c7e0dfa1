"""An index on a server, named by a URI; the server has the vectors, captions and metadata, but not the towers."""

import hashlib
import re
import uuid
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.version import __version__
from selhn.search.stores.store import ApproximateKind, Identity, Store
from selhn.towers import AbstractTowers

VERSION = 1
IDENTITY_FIELDS = ("model", "model_name", "width", "about")
DEFAULT_NAME = "selhn"
SMALL = 50_000
"""Up to this many images, `approximate("auto")` keeps search exact."""
TIMEOUT = 30
"""Seconds until a server that does not answer is given up."""
REPEAT = "No data was lost: {}, and repeat the command"
REMOVED = "the index was removed, make it again"
Searching = Literal["exact", "hnsw"]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}\Z", re.ASCII)


class ServerStore(Store):
    """What all servers have in common; several processes may write to one at once."""

    product: str
    found_by: Searching

    def __init__(self, uri: str):
        super().__init__()
        self.path, self.generation = uri, 0
        self._state: tuple[Any, ...] = ()

    @classmethod
    def create(
        cls, path: Path | str | None, identity: Identity, towers: AbstractTowers, keep_towers: bool
    ) -> "ServerStore":
        if not towers.is_product:
            raise SelhnError(f"{towers.name} does not score by products: keep its index in a folder")
        if identity.precision != "float32":
            raise SelhnError(
                f"vectors in {cls.product} are float32, not {identity.precision}: omit the precision"
            )
        store = cls(str(path))
        if store.about() is not None:
            raise SelhnError(f"{path} is an index already: open it, or choose another #NAME")
        store.born = uuid.uuid4().hex
        content = {"version": VERSION, "selhn": __version__, "born": store.born}
        store.make(identity.width, {**content, **{name: getattr(identity, name) for name in IDENTITY_FIELDS}})
        store.identity, store.found_by = identity, "exact"
        return store

    @classmethod
    def open(cls, path: Path | str) -> "ServerStore":
        store = cls(str(path))
        content = store.about()
        if content is None:
            raise NotFound(f"there is no index at {path}: make one with `selhn index FOLDER --uri {path}`")
        if content.get("version") != VERSION:
            raise Damaged(
                f"{path} has version {content.get('version')} (selhn {content.get('selhn')}), this selhn "
                f"reads {VERSION}: install another selhn, or choose another #NAME"
            )
        store.identity = Identity(**{name: content[name] for name in IDENTITY_FIELDS})
        store.born = str(content.get("born", ""))
        store.refresh()
        return store

    @classmethod
    def exists(cls, path: Path | str) -> bool:
        return cls(str(path)).about() is not None

    @abstractmethod
    def about(self) -> dict[str, Any] | None:
        """What an index says about itself; None if there is no index."""

    @abstractmethod
    def make(self, width: int, about: Mapping[str, Any]) -> None:
        """Make an empty index."""

    @abstractmethod
    def searching(self) -> Searching:
        """How the server searches now."""

    @abstractmethod
    def search_by(self, searching: Searching) -> None:
        """Have the server search in this way."""

    def approximate(self, kind: ApproximateKind) -> None:
        if kind not in ("auto", "exact", "hnsw"):
            raise SelhnError(
                f"in {self.product} search is exact or hnsw, not {kind}: choose one of them, or auto"
            )
        with self._changing:
            by_graph = kind == "hnsw" or (kind == "auto" and self.count() > SMALL)
            searching: Searching = "hnsw" if by_graph else "exact"
            self.search_by(searching)
            self.found_by = searching

    def state(self) -> tuple[Any, ...]:
        """Numbers that differ after others have changed something."""
        return (self.count(),)

    def refresh(self) -> None:
        """See whether others have added or removed items; a search always sees what is there."""
        state = self.state()
        self.generation += state != self._state
        self._state, self.found_by = state, self.searching()


def split_uri(uri: str) -> tuple[str, str]:
    """The address, and the name of the index there."""
    address, _, name = uri.partition("#")
    if not _NAME.match(name or DEFAULT_NAME):
        raise SelhnError(f"{name[:60]!r} in {uri} is not a name: use letters, digits and _")
    return address, name or DEFAULT_NAME


def key_of(name: str) -> str:
    """The key of an item: letters and digits, whatever its id is."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def reason(wrong: object) -> str:
    """The first line of what a server says."""
    return str(wrong).strip().split("\n")[0][:200]
