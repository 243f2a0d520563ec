"""Answers that grow step by step: sessions beside batches, deadlines, clients that go away."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

import pytest

from unmask.serve.batching import Batcher, Work
from unmask.serve.limits import Limits, Refused
from unmask.serve.metrics import Metrics


@dataclass
class Counting:
    """A session that counts to a number for each of its items, one a step."""

    items: list[int]
    log: list[str] = field(default_factory=list)
    seconds: float = 0.0
    at: int = 0

    @property
    def done(self) -> bool:
        return self.at >= max(self.items)

    def step(self) -> None:
        time.sleep(self.seconds)
        self.at += 1
        self.log.append("step")

    def answers(self) -> list[list[int]]:
        return [list(range(1, min(self.at, most) + 1)) for most in self.items]


class Thread:
    """A batcher whose thread runs, and works for it."""

    def __init__(self, **limits) -> None:
        self.batcher = Batcher(Limits(**limits), Metrics())
        self.log: list[str] = []
        self.sessions: list[Counting] = []
        self.seconds = 0.0

    def __enter__(self) -> "Thread":
        self.batcher.start()
        return self

    def __exit__(self, *problem) -> None:
        self.batcher.stop()
        assert not self.batcher.thread.is_alive()

    def counting(self, *items: int, key: str = "count") -> Work:
        def begin(some) -> Counting:
            self.sessions.append(Counting(list(some), self.log, self.seconds))
            return self.sessions[-1]

        return Work(key, begin, items, 1, grows=True)

    def doubling(self, *items: int) -> Work:
        def run(some) -> list[int]:
            self.log.append("batch")
            return [2 * item for item in some]

        return Work("double", run, items, 1)

    def ask(self, *works: Work) -> list:
        """The answers to works that are asked at the same time."""

        async def all_of_them() -> list:
            asked = (self.batcher.ask(work) for work in works)
            return await asyncio.gather(*asked, return_exceptions=True)

        return asyncio.run(all_of_them())


def test_a_session_runs_to_its_end_and_answers_each_item():
    with Thread() as thread:
        assert thread.ask(thread.counting(2, 3)) == [[[1, 2], [1, 2, 3]]]


def test_works_that_want_the_same_grow_in_one_session():
    with Thread() as thread:
        thread.seconds = 0.05
        first = thread.counting(1, key="other")  # holds the thread while the next two come
        found = thread.ask(first, thread.counting(2), thread.counting(3))
        assert found[1:] == [[[1, 2]], [[1, 2, 3]]]
        assert [session.items for session in thread.sessions] == [[1], [2, 3]]


def test_a_batch_is_served_between_two_steps():
    with Thread() as thread:
        thread.seconds = 0.02

        async def both() -> list:
            long = asyncio.create_task(thread.batcher.ask(thread.counting(20)))
            await asyncio.sleep(0.05)
            short = await thread.batcher.ask(thread.doubling(4))
            assert not long.done(), "nobody waits for a long text to end"
            return [short, *await long]

        assert asyncio.run(both())[0] == [8]
        place = thread.log.index("batch")
        assert thread.log[:place].count("step") >= 1
        assert thread.log[place:].count("step") >= 1


def test_sessions_take_turns():
    with Thread() as thread:
        thread.seconds = 0.01
        found = thread.ask(thread.counting(5, key="a"), thread.counting(5, key="b"))
        assert found == [[[1, 2, 3, 4, 5]]] * 2
        first, second = (session.at for session in thread.sessions)
        assert first == second == 5
        assert len(thread.log) == 10


def test_no_more_sessions_than_the_limit_grow_at_once():
    with Thread(sessions=1) as thread:
        thread.seconds = 0.01
        seen = []
        second = thread.counting(2, key="b")
        begin = second.run

        def noting(some) -> Counting:
            seen.append(len(thread.batcher.sessions))
            return begin(some)

        second.run = noting
        assert thread.ask(thread.counting(3, key="a"), second) == [[[1, 2, 3]], [[1, 2]]]
        assert seen == [0]


def test_the_deadline_of_a_session_is_checked_between_two_steps():
    with Thread(request_seconds=0.2) as thread:
        thread.seconds = 0.05
        (found,) = thread.ask(thread.counting(1000))
        assert isinstance(found, Refused)
        assert found.status == 503
        assert thread.sessions[0].at < 20


def test_a_session_ends_when_nobody_waits_for_it_any_more():
    with Thread() as thread:
        thread.seconds = 0.02

        async def gone() -> None:
            asking = asyncio.create_task(thread.batcher.ask(thread.counting(1000)))
            await asyncio.sleep(0.1)
            asking.cancel()
            await asyncio.sleep(0.1)

        asyncio.run(gone())
        steps = thread.sessions[0].at
        time.sleep(0.2)
        assert thread.sessions[0].at == steps < 20
        assert thread.ask(thread.doubling(1)) == [[2]]


def test_what_is_wrong_with_one_session_is_not_answered_to_its_neighbour():
    with Thread() as thread:
        thread.seconds = 0.05

        def begin(some) -> Counting:
            if 13 in some:
                raise ValueError("thirteen")
            return Counting(list(some), thread.log)

        works = [Work("count", begin, (item,), 1, grows=True) for item in (2, 13)]
        first, good, bad = thread.ask(thread.counting(1, key="other"), *works)
        assert first == [[1]]
        assert good == [[1, 2]]
        assert isinstance(bad, RuntimeError)


def test_an_answer_is_streamed_as_it_grows_and_ends_complete():
    with Thread() as thread:

        async def grown() -> list:
            return [answer async for answer in thread.batcher.stream(thread.counting(4))]

        found = asyncio.run(grown())
        assert found == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]


def test_a_stream_that_is_left_ends_its_session():
    with Thread() as thread:
        thread.seconds = 0.02

        async def left() -> None:
            async for answer in thread.batcher.stream(thread.counting(1000)):
                if len(answer) == 3:
                    break
            await asyncio.sleep(0.1)

        asyncio.run(left())
        steps = thread.sessions[0].at
        time.sleep(0.2)
        assert thread.sessions[0].at == steps < 20


def test_who_is_stopped_ends_the_sessions_that_run():
    with Thread() as thread:
        thread.seconds = 0.01
        found = []
        asking = threading.Thread(target=lambda: found.extend(thread.ask(thread.counting(30))))
        asking.start()
        while not thread.sessions:
            time.sleep(0.01)
    asking.join(timeout=10)
    assert found == [[list(range(1, 31))]]


@pytest.mark.parametrize("items", [(), (1,)])
def test_nothing_asked_is_nothing_answered(items):
    with Thread() as thread:
        assert thread.ask(thread.doubling(*items)) == [[2 * item for item in items]]
