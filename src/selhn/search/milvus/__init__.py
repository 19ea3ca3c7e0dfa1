"""An index whose vectors lie in Milvus."""

from selhn.search.milvus.index import MilvusIndex
from selhn.search.milvus.store import is_milvus

__all__ = ["MilvusIndex", "is_milvus"]
