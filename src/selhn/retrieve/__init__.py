"""Search: a query to the images or texts that fit it."""

from selhn.retrieve.browsing import browse
from selhn.retrieve.folder import is_index
from selhn.retrieve.index import Index
from selhn.retrieve.interface import AnyIndex
from selhn.retrieve.items import Hit, Item, Query, Record
from selhn.retrieve.milvus import MilvusIndex, is_milvus
from selhn.retrieve.opening import create_index, has_index, load_index
from selhn.retrieve.rerank import Reranker, rerank_split

__all__ = [
    "AnyIndex",
    "Hit",
    "Index",
    "Item",
    "MilvusIndex",
    "Query",
    "Record",
    "Reranker",
    "browse",
    "create_index",
    "has_index",
    "is_index",
    "is_milvus",
    "load_index",
    "rerank_split",
]
