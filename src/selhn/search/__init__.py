"""Search: a query to the images or texts that fit it."""

from selhn.search.fit import Fit
from selhn.search.index import Index
from selhn.search.items import Hit, Item, Kind, Record
from selhn.search.query import Query
from selhn.search.rerank import Reranker
from selhn.search.stores import is_milvus, is_uri

__all__ = ["Fit", "Hit", "Index", "Item", "Kind", "Query", "Record", "Reranker", "is_milvus", "is_uri"]
