"""Answers several questions together if they arrive at the same time."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Wanted = Callable[[int], bool]
"""Whether the client that asked the question of a row is still connected."""


class Batcher(Generic[Question, Answer]):
    """One thread answers a question at once if it is idle, and those that arrive meanwhile together.

    So no question waits for others to arrive, and batches grow with the load.

    Args:
        answer: returns the answers to some questions, or exceptions in their places. Its second argument says
            which questions are still wanted.
        most: questions per batch.
        observe: called with the size of every batch.
        thread: an executor with one thread, which other batchers may share.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Question], Wanted], Sequence[Answer | Exception]],
        most: int = 64,
        observe: Callable[[int], object] = lambda size: None,
        thread: ThreadPoolExecutor | None = None,
    ):
        self._answer, self._most, self._observe = answer, most, observe
        self._waiting: deque[tuple[Question, asyncio.Future[Answer]]] = deque()
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="model")
        self._working: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """The answer; raises the exception that `answer` returned in its place."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answered))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await answered

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call something else in the same thread, so that it never runs beside an answer."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def finish(self) -> None:
        if self._working is not None:
            await self._working

    async def close(self) -> None:
        """Answer the waiting questions first."""
        await self.finish()
        self._thread.shutdown()

    async def _work(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            questions = [question for question, answered in taken if not answered.done()]
            waiting = [answered for _, answered in taken if not answered.done()]
            if not waiting:  # all clients have disconnected
                continue
            self._observe(len(waiting))
            work = self.run(self._answer, questions, lambda row: not waiting[row].done())  # noqa: B023
            found = (await asyncio.gather(work, return_exceptions=True))[0]
            # A bug is raised where the question was asked, with its traceback.
            answers = [found] * len(waiting) if isinstance(found, BaseException) else found
            for answered, answer in zip(waiting, answers):
                if answered.done():
                    continue
                if isinstance(answer, BaseException):
                    answered.set_exception(answer)
                else:
                    answered.set_result(answer)
