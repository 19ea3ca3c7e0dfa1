"""Where the vectors of an index are kept: in memory, in a folder, or in Milvus."""

from selhn.search.stores.milvus import MilvusStore
from selhn.search.stores.milvus_rows import is_milvus
from selhn.search.stores.segments import SegmentStore

__all__ = ["MilvusStore", "SegmentStore", "is_milvus", "store_for"]


def store_for(path: object) -> type[SegmentStore] | type[MilvusStore]:
    """The class that keeps an index at a path; without one, in memory."""
    return MilvusStore if is_milvus(path) else SegmentStore
