"""Near-duplicates of a collection, found in a separate thread: comparing 100,000 pictures takes a while."""

from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from selhn.search import Index
from selhn.search.near_duplicates import Alike, near_duplicates


class Duplicates:
    """Groups of pictures that are almost the same; they are found again after a change of the index."""

    def __init__(self, index: Index):
        self.index = index
        self.share = 0.0
        """How much of the work is done."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="duplicates")
        self._looking: Future[list[Alike]] | None = None
        self._found: list[Alike] | None = None
        self._generation, self._ended = -1, False

    def groups(self) -> list[Alike] | None:
        """The groups, perhaps from before the last change; None while the first search runs."""
        if self._looking is not None and self._looking.done():
            done, self._looking = self._looking, None
            self._found = done.result()
        if self._looking is None and self._generation != self.index.generation:
            self.share, self._generation = 0.0, self.index.generation
            self._looking = self._thread.submit(near_duplicates, self.index, self._told)
        return self._found

    def close(self) -> None:
        self._ended = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _told(self, share: float) -> None:
        self.share = share
        if self._ended:
            raise CancelledError
