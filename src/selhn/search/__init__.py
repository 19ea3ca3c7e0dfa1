"""Search: a query to the images or texts that fit it."""

from selhn.search.folder import is_index
from selhn.search.index import Index
from selhn.search.interface import AnyIndex
from selhn.search.items import Hit, Item, Query, Record
from selhn.search.milvus import MilvusIndex, is_milvus
from selhn.search.opening import create_index, has_index, load_index
from selhn.search.rerank import Reranker, rerank_split

__all__ = [
    "AnyIndex",
    "Hit",
    "Index",
    "Item",
    "MilvusIndex",
    "Query",
    "Record",
    "Reranker",
    "create_index",
    "has_index",
    "is_index",
    "is_milvus",
    "load_index",
    "rerank_split",
]
