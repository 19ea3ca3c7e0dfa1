"""Search: a query to the images or texts that fit it."""

from selhn.retrieve.folder import is_index
from selhn.retrieve.index import Index
from selhn.retrieve.items import Hit, Item, Query, Record
from selhn.retrieve.rerank import Reranker, rerank_split

__all__ = ["Hit", "Index", "Item", "Query", "Record", "Reranker", "is_index", "rerank_split"]
