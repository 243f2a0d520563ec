"""Answers that grow step by step: sessions beside batches, deadlines, clients that go away."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

import pytest

from unmask.model.block import before_each_block
from unmask.server.batching import Batcher, PendingRequest
from unmask.server.limits import Limits, RequestError
from unmask.server.metrics import Metrics


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

    breaks: int | None = None  # the step at which it does, if it is asked for a 13
    name: str = "step"

    def step(self) -> None:
        time.sleep(self.seconds)
        if self.at == self.breaks and 13 in self.items:
            raise ValueError("thirteen")
        self.at += 1
        self.log.append(self.name)

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

    def counting(self, *items: int, key: str = "count") -> PendingRequest:
        def begin(some) -> Counting:
            self.sessions.append(Counting(list(some), self.log, self.seconds))
            return self.sessions[-1]

        return PendingRequest(key, begin, items, 1, generates=True)

    def doubling(self, *items: int) -> PendingRequest:
        def run(some) -> list[int]:
            self.log.append("batch")
            return [2 * item for item in some]

        return PendingRequest("double", run, items, 1)

    def ask(self, *works: PendingRequest) -> list:
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


def of_layers(thread: Thread, layers: int, seconds: float) -> PendingRequest:
    """A session of one step, which may be interrupted before each of its layers."""

    class Layered(Counting):
        def step(self) -> None:
            for _ in range(layers):
                thread.batcher.interrupt()
                time.sleep(seconds)
                thread.log.append("layer")
            super().step()

    def begin(some) -> Counting:
        return Layered(list(some), thread.log)

    return PendingRequest("layers", begin, [1], 1, generates=True, model="translator")


def log_beside_layers(thread: Thread, *works: PendingRequest) -> list[str]:
    """What happens, in order, if works come while the first of ten layers runs."""

    async def both() -> None:
        long = asyncio.create_task(thread.batcher.ask(of_layers(thread, 10, 0.02)))
        while not thread.log:
            await asyncio.sleep(0.001)
        await asyncio.gather(*(thread.batcher.ask(work) for work in works))
        await long

    asyncio.run(both())
    return thread.log


def test_a_batch_of_another_model_interrupts_a_step_between_two_layers():
    with Thread() as thread:
        work = thread.doubling(4)
        work.model = "minilm"
        log = log_beside_layers(thread, work)
        assert log.count("layer") == 10
        assert 1 <= log.index("batch") < 10


def test_a_batch_of_the_same_model_or_another_session_waits_for_the_end_of_a_step():
    with Thread() as thread:
        same = thread.doubling(4)
        same.model = "translator"
        log = log_beside_layers(thread, same, thread.counting(1))
        assert log[:10] == ["layer"] * 10
        assert "batch" in log[10:]


def test_a_step_is_not_interrupted_again_before_a_quarter_of_the_time_of_the_batch():
    with Thread() as thread:
        works = [thread.doubling(number) for number in (1, 2)]
        for work in works:
            work.key, double = object(), work.run  # so that they do not share a batch

            def slow(items, double=double) -> list[int]:
                time.sleep(0.4)
                return double(items)

            work.run, work.model = slow, "minilm"
        log = log_beside_layers(thread, *works)
        first = log.index("batch")
        second = log.index("batch", first + 1)
        # 0.1 s are the time of five layers; a busy machine sleeps longer, so of fewer. Without the
        # rule, the second batch would come after one.
        assert 2 <= second - first - 1 <= 6


def test_a_text_that_is_generated_with_interruptions_is_the_same(served, server):
    pytest.importorskip("httpx")
    batcher, translator = server.batcher, served["translator"]
    calls = []

    def counted() -> None:
        calls.append(batcher.stepping)
        served["pretrained"].embed(["a man"])  # uses other layers in the middle of a step

    (whole,) = translator.translate(["a man eats ."])
    handles = before_each_block(translator.network, counted)
    try:
        with server.client() as client:
            body = {"texts": ["a man eats ."], "model": "translator"}
            (answer,) = client.post("/translate", json=body).json()
    finally:
        for handle in handles:
            handle.remove()
    assert answer["text"] == whole
    assert len(whole.split()) > 3
    assert "translator" in calls, "the layers of a step were not announced"


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
        assert isinstance(found, RequestError)
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

        works = [PendingRequest("count", begin, (item,), 1, generates=True) for item in (2, 13)]
        first, good, bad = thread.ask(thread.counting(1, key="other"), *works)
        assert first == [[1]]
        assert good == [[1, 2]]
        assert isinstance(bad, RuntimeError)


def test_what_a_client_has_seen_does_not_shrink_when_its_neighbour_fails():
    with Thread(sessions=1) as thread:
        thread.seconds = 0.05
        most = []

        def begin(some) -> Counting:
            most.append(len(thread.batcher.sessions) + 1)
            thread.sessions.append(Counting(list(some), thread.log, 0.01, breaks=3))
            return thread.sessions[-1]

        async def all_of_them() -> tuple[list, object]:
            first = asyncio.create_task(thread.batcher.ask(thread.counting(1, key="other")))
            await asyncio.sleep(0.01)  # it holds the thread while the next two come
            bad = asyncio.create_task(
                thread.batcher.ask(PendingRequest("count", begin, (13,), 1, generates=True))
            )
            works = thread.batcher.stream(PendingRequest("count", begin, (6,), 1, generates=True))
            found = [answer async for answer in works]
            await first
            (problem,) = await asyncio.gather(bad, return_exceptions=True)
            return found, problem

        found, problem = asyncio.run(all_of_them())
        assert [session.items for session in thread.sessions[1:]] == [[13, 6], [13], [6]]
        assert [len(answer) for answer in found] == [1, 2, 3, 4, 5, 6]
        assert isinstance(problem, RuntimeError)
        assert set(most) == {1}, "no more sessions run at once than may"
        assert thread.batcher.waiting == 0


def test_what_is_wrong_with_one_text_of_a_batch_is_not_answered_to_the_others():
    with Thread() as thread:
        thread.seconds = 0.05

        def run(some) -> list[int]:
            if 13 in some:
                raise ValueError("thirteen")
            return list(some)

        works = [PendingRequest("same", run, (item,), 1) for item in (1, 13, 2)]
        held, first, bad, second = thread.ask(thread.counting(1, key="other"), *works)
        assert (held, first, second) == ([[1]], [1], [2])
        assert isinstance(bad, RuntimeError)
        assert thread.batcher.waiting == 0


def test_sessions_step_for_as_long_as_the_batch_before_them_took():
    with Thread() as thread:

        def slowly(some) -> list[int]:
            thread.log.append("batch")
            time.sleep(0.05)
            return list(some)

        def begin(some) -> Counting:
            return Counting(list(some), thread.log, 0.001, name=f"step {some[0]}")

        async def both() -> None:
            counts = [PendingRequest(n, begin, (100_000 + n,), 1, generates=True) for n in range(4)]
            growing = [asyncio.create_task(thread.batcher.ask(work)) for work in counts]
            await asyncio.sleep(0.1)
            await asyncio.gather(
                *(thread.batcher.ask(PendingRequest(n, slowly, (n,), 1)) for n in range(10, 16))
            )
            for own in growing:
                own.cancel()
            await asyncio.sleep(0.1)

        asyncio.run(both())
        first = thread.log.index("batch")
        last = len(thread.log) - thread.log[::-1].index("batch") - 1
        between = " ".join(thread.log[first:last]).split("batch")[1:]
        assert len(between) == 5
        for steps in between:  # of each session one
            assert sorted(steps.replace("step", "").split()) == [
                "100000",
                "100001",
                "100002",
                "100003",
            ]


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
