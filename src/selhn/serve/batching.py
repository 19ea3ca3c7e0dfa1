"""Questions that are asked at the same time, answered together."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Batcher(Generic[Question, Answer]):
    """One thread that answers: a question that finds it idle is answered at once, those that come meanwhile together.

    So nobody waits for others to come, and the busier the service, the larger the batches.

    Args:
        answer: the answers to some questions, an exception in place of an answer that cannot be given. It is also
            given a function that tells whether whoever asked the question of a row is still there.
        most: questions in a batch.
        observe: told the size of every batch.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Question], Callable[[int], bool]], Sequence[Answer | Exception]],
        most: int = 64,
        observe: Callable[[int], object] = lambda size: None,
    ):
        self._answer, self._most, self._observe = answer, most, observe
        self._waiting: deque[tuple[Question, asyncio.Future[Answer]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._working: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """The answer, or the exception that stands in its place."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answered))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await answered

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Something else in the same thread, so that it is never beside an answer."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def close(self) -> None:
        """Answer what waits, and end the thread."""
        if self._working is not None:
            await self._working
        self._thread.shutdown()

    async def _work(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            questions = [question for question, answered in taken if not answered.done()]
            waiting = [answered for _, answered in taken if not answered.done()]
            if not waiting:  # all of them went away
                continue
            self._observe(len(waiting))
            for answered, answer in zip(waiting, await self._answers(questions, waiting)):
                if answered.done():
                    continue
                if isinstance(answer, BaseException):
                    answered.set_exception(answer)
                else:
                    answered.set_result(answer)

    async def _answers(
        self, questions: Sequence[Question], waiting: Sequence[asyncio.Future[Answer]]
    ) -> Sequence[Answer | BaseException]:
        work = asyncio.ensure_future(self.run(self._answer, questions, lambda row: not waiting[row].done()))
        await asyncio.wait([work])
        wrong = work.exception()  # raised where the question was asked, a bug with its traceback
        return work.result() if wrong is None else [wrong] * len(waiting)
