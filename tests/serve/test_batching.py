import asyncio
import threading

import pytest

from selhn.serve.batching import Batcher


def asked_together(batcher, questions, **settings):
    async def run():
        found = await asyncio.gather(
            *(batcher.ask(question) for question in questions), return_exceptions=True
        )
        await batcher.close()
        return found

    return asyncio.run(run())


class Doubling:
    """Doubles numbers, remembers batches, and holds the first until it may go on."""

    def __init__(self):
        self.batches, self.threads = [], set()

    def __call__(self, questions, wanted):
        self.batches.append(list(questions))
        self.threads.add(threading.current_thread().name)
        return [ValueError("odd") if question % 2 else question * 2 for question in questions]


def test_what_waits_is_answered_together():
    double, sizes = Doubling(), []
    batcher = Batcher(double, observe=sizes.append)
    assert asked_together(batcher, [0, 2, 4, 6]) == [0, 4, 8, 12]
    assert double.batches == [[0, 2, 4, 6]]
    assert sizes == [4]


def test_those_that_come_while_it_answers_wait_for_the_next_batch():
    going, free = threading.Event(), threading.Event()
    batches = []

    def answer(questions, wanted):
        batches.append(list(questions))
        going.set()
        assert free.wait(10)
        return questions

    async def run():
        batcher = Batcher(answer, most=3)
        first = asyncio.create_task(batcher.ask(0))
        while not going.is_set():
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.ask(number)) for number in range(1, 6)]
        await asyncio.sleep(0)
        free.set()
        found = await asyncio.gather(first, *others)
        await batcher.close()
        return found

    assert asyncio.run(run()) == [0, 1, 2, 3, 4, 5]
    assert batches == [[0], [1, 2, 3], [4, 5]]


def test_an_error_is_that_of_its_own_question():
    found = asked_together(Batcher(Doubling()), [2, 3])
    assert found[0] == 4
    assert isinstance(found[1], ValueError)


def test_an_unexpected_error_reaches_all_and_ends_nothing():
    def breaks(questions, wanted):
        if 13 in questions:
            raise RuntimeError("broken")
        return questions

    async def run():
        batcher = Batcher(breaks)
        bad = await asyncio.gather(batcher.ask(13), batcher.ask(1), return_exceptions=True)
        good = await batcher.ask(1)
        await batcher.close()
        return bad, good

    bad, good = asyncio.run(run())
    assert [str(one) for one in bad] == ["broken", "broken"]
    assert good == 1


def test_who_went_away_is_not_answered():
    double = Doubling()

    async def run():
        batcher = Batcher(double)
        gone = asyncio.create_task(batcher.ask(2))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await batcher.ask(4) == 8
        await batcher.close()

    asyncio.run(run())
    assert double.batches == [[4]]


def test_other_work_is_done_by_the_same_thread():
    double = Doubling()

    async def run():
        batcher = Batcher(double)
        await batcher.ask(2)
        name = await batcher.run(lambda: threading.current_thread().name)
        await batcher.close()
        return name

    assert {asyncio.run(run())} == double.threads


def test_it_can_be_asked_whether_anyone_still_waits():
    seen = []

    def answer(questions, wanted):
        seen.append([wanted(row) for row in range(len(questions))])
        leaving.set()
        assert left.wait(10)
        seen.append([wanted(row) for row in range(len(questions))])
        return questions

    leaving, left = threading.Event(), threading.Event()

    async def run():
        batcher = Batcher(answer)
        asked = [asyncio.create_task(batcher.ask(number)) for number in (1, 2)]
        while not leaving.is_set():
            await asyncio.sleep(0.001)
        asked[0].cancel()
        await asyncio.sleep(0)
        left.set()
        assert await asked[1] == 2
        await batcher.close()

    asyncio.run(run())
    assert seen == [[True, True], [False, True]]
