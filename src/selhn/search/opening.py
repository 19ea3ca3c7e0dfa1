"""An index by its place: a folder, a file of Milvus Lite (pictures.db), or a Milvus server (http://host:19530)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selhn.base.errors import SelhnError
from selhn.models import AbstractMatcher
from selhn.search.folder import is_index
from selhn.search.index import Index
from selhn.search.interface import AnyIndex
from selhn.search.milvus import MilvusIndex, is_milvus
from selhn.search.milvus.index import holds_index
from selhn.search.vectors import Precision


def has_index(place: Path | str) -> bool:
    """Whether there is an index."""
    return holds_index(place) if isinstance(place, str) and is_milvus(place) else is_index(place)


def load_index(place: Path | str, model: AbstractMatcher | None = None) -> AnyIndex:
    """Open an index; `model` where it neither holds nor names its own."""
    return MilvusIndex.load(place, model) if isinstance(place, str) and is_milvus(place) else Index.load(place, model)


def create_index(
    place: Path | str,
    model: AbstractMatcher,
    *,
    precision: Precision = "float32",
    about: Mapping[str, Any] | None = None,
    keep_model: bool = True,
) -> AnyIndex:
    """A new, empty index; see `Index.create`."""
    if isinstance(place, str) and is_milvus(place):
        if precision != "float32":
            raise SelhnError(f"vectors in Milvus are float32, not {precision}: leave --precision out")
        return MilvusIndex.create(model, place, about=about)
    return Index.create(model, place, precision=precision, about=about, keep_model=keep_model)
