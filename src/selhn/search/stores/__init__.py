"""Where the vectors of an index are kept: in memory, in a folder, in Milvus, or in PostgreSQL."""

from selhn.search.stores.milvus import MilvusStore
from selhn.search.stores.milvus_rows import is_milvus
from selhn.search.stores.postgres import PostgresStore, is_postgres
from selhn.search.stores.segments import SegmentStore

__all__ = ["SegmentStore", "is_milvus", "is_uri", "store_for"]


def store_for(path: object) -> type[SegmentStore] | type[MilvusStore] | type[PostgresStore]:
    """The class that keeps an index at a path; without one, in memory."""
    return MilvusStore if is_milvus(path) else PostgresStore if is_postgres(path) else SegmentStore


def is_uri(path: object) -> bool:
    """Whether a path is the address of Milvus or PostgreSQL, not a folder."""
    return store_for(path) is not SegmentStore
