"""An index whose vectors lie in Milvus."""

from selhn.retrieve.milvus.index import MilvusIndex
from selhn.retrieve.milvus.store import is_milvus

__all__ = ["MilvusIndex", "is_milvus"]
