"""Where the vectors of an index are kept: in memory, in a folder, or in Milvus."""

from pathlib import Path

from selhn.models import AbstractMatcher
from selhn.search.stores.milvus import MilvusStore
from selhn.search.stores.milvus_rows import is_milvus
from selhn.search.stores.segment_folder import is_index
from selhn.search.stores.segments import SegmentStore
from selhn.search.stores.store import ApproximateKind, Encoded, Identity, Store, Stored

__all__ = [
    "ApproximateKind",
    "Encoded",
    "Identity",
    "SegmentStore",
    "Store",
    "Stored",
    "create_store",
    "has_store",
    "is_milvus",
    "open_store",
]


def has_store(path: Path | str) -> bool:
    """Whether there is an index in a folder or at a Milvus URI; nothing is created by asking."""
    return MilvusStore.exists(str(path)) if is_milvus(path) else is_index(path)


def open_store(path: Path | str) -> Store:
    """The store of an existing index."""
    return MilvusStore.open(str(path)) if is_milvus(path) else SegmentStore.open(path)


def create_store(path: Path | str | None, identity: Identity, model: AbstractMatcher, keep_model: bool) -> Store:
    """An empty store, in memory without a path."""
    if is_milvus(path):
        return MilvusStore.create(str(path), identity, model)
    return SegmentStore.create(path, identity, model if keep_model else None)
