"""What an index can do, wherever its vectors lie: in a folder (`Index`) or in Milvus (`MilvusIndex`)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.models import AbstractMatcher
from selhn.search.changes import OnExisting
from selhn.search.faiss_index import ApproximateKind
from selhn.search.items import Hit, Item, Kind, Query, Record
from selhn.search.snapshot import Identity
from selhn.search.where import Where


@runtime_checkable
class AnyIndex(Protocol):
    """Images and their texts, encoded once by one model; see `Index` for what each of these does."""

    model: AbstractMatcher

    @property
    def place(self) -> str:
        """Where it lies, for people."""
        ...

    @property
    def identity(self) -> Identity:
        """What it is, whatever it holds."""
        ...

    @property
    def about(self) -> Mapping[str, Any]:
        """What whoever made it wanted to remember."""
        ...

    @property
    def generation(self) -> int:
        """Another number after every change that this process knows of."""
        ...

    @property
    def num_texts(self) -> int:
        """How many captions there are."""
        ...

    @property
    def found_by(self) -> str:
        """What proposes answers; "exact" where all are looked at."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, name: str) -> bool: ...

    def ids(self) -> list[str]:
        """The ids of all items."""
        ...

    def get(self, name: str) -> Record:
        """Captions and metadata of an item."""
        ...

    def records(self, where: Where | None = None) -> Iterator[Record]:
        """What is known of all items for which a filter holds."""
        ...

    def count(self, where: Where | None = None) -> int:
        """For how many items a filter holds."""
        ...

    def search(
        self,
        query: str | Float[Tensor, "M F"] | Query | None = None,
        k: int = 5,
        find: Kind | None = None,
        *,
        text: str | None = None,
        image: Float[Tensor, "M F"] | None = None,
        like: str | None = None,
        weights: Mapping[str, float] | None = None,
        where: Where | None = None,
    ) -> list[Hit]:
        """The k best answers."""
        ...

    def search_many(
        self,
        queries: Sequence[str | Float[Tensor, "_ _"] | Query],
        k: int = 5,
        find: Kind | None = None,
        *,
        where: Where | None = None,
    ) -> list[list[Hit]]:
        """The answers to several queries."""
        ...

    def add(self, items: Iterable[Item], existing: OnExisting = "refuse") -> int:
        """Encode and add items; gives how many."""
        ...

    def update(self, items: Iterable[Item]) -> int:
        """Replace items by others of the same ids."""
        ...

    def delete(self, ids: Iterable[str]) -> int:
        """Remove items; gives how many."""
        ...

    def approximate(self, kind: ApproximateKind = "auto") -> None:
        """Look at some candidates only from now on."""
        ...

    def refresh(self) -> None:
        """See what others have written."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Hold off other writers over several changes."""
        ...

    def to(self, device: torch.device | str) -> "AnyIndex":
        """The model on a device."""
        ...
