"""The engine: answers in order, in steady memory, whatever the batches."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.conftest import tiny_network
from unmask.data.batch import pack_and_collate
from unmask.infer import engine
from unmask.tasks.forward import LiveForward
from unmask.text.tokenizer import Encoded


def examples(lengths):
    generator = torch.Generator().manual_seed(2)
    for n in lengths:
        ids = torch.randint(5, 23, (n,), generator=generator).tolist()
        yield Encoded(ids, [0] * n, [(0, 0)] * n, [False] * n)


def lengths_and_sums(network):
    """The length of each text and the sum of its last states."""

    def read(some):
        batch = pack_and_collate(some, pad_id=0)
        last = LiveForward(network).last(batch)
        places = zip(batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True)
        return [(n, last[row, start : start + n].sum().item()) for row, start, n in places]

    return read


def test_answers_come_in_the_order_of_the_texts():
    lengths = [7, 2, 31, 2, 19, 5, 5, 12] * 4
    found = list(engine.run_in_order(examples(lengths), lengths_and_sums(tiny_network())))
    assert [n for n, _ in found] == lengths


@pytest.mark.parametrize(
    ("group", "batch", "workers"),
    [(3, 20, 1), (1, 1, 1), (100, 10_000, 1), (100, 20, 3), (20, 40, 2), (5, 1000, 2)],
)
def test_answers_do_not_depend_on_groups_batches_and_workers(monkeypatch, group, batch, workers):
    lengths = [7, 2, 31, 2, 19, 5, 5, 12] * 4
    network = tiny_network()
    expected = list(engine.run_in_order(examples(lengths), lengths_and_sums(network)))
    monkeypatch.setattr(engine, "GROUP", group)
    monkeypatch.setattr(engine, "BATCH_TOKENS", batch)
    monkeypatch.setattr(engine, "WORKER_TOKENS", batch)
    found = list(engine.run_in_order(examples(lengths), lengths_and_sums(network), workers=workers))
    assert [n for n, _ in found] == lengths
    assert [s for _, s in found] == pytest.approx([s for _, s in expected], abs=1e-4)


@pytest.mark.parametrize(
    ("lengths", "shape"),
    [
        ([20] * 10, (10, 20)),  # nothing is gained by sharing
        ([60] + [10] * 6, (2, 60)),
        ([100] + [28] * 5, (2, 128)),  # three rows of 100 would cost more
        ([200, 90, 90], (2, 200)),  # a long one decides
        ([1], (1, 1)),
    ],
)
def test_texts_share_the_rows_that_cost_least(lengths, shape):
    assert pack_and_collate(list(examples(lengths)), pad_id=0).tokens.shape == shape


def test_only_one_group_is_taken_ahead_of_the_answers(monkeypatch):
    monkeypatch.setattr(engine, "GROUP", 10)
    taken = 0

    def counting():
        nonlocal taken
        for one in examples([5] * 100):
            taken += 1
            yield one

    answers = engine.run_in_order(counting(), lengths_and_sums(tiny_network()))
    next(answers)
    assert taken == 10


def test_a_group_ends_when_memory_is_full(monkeypatch):
    taken = []

    def counting():
        for one in examples([5] * 100):
            taken.append(one)
            yield one

    answers = engine.run_in_order(
        counting(), lengths_and_sums(tiny_network()), full=lambda: len(taken) % 7 == 0
    )
    next(answers)
    assert len(taken) == 7
    assert len(list(answers)) == 99


def test_no_text_gives_no_answer():
    assert list(engine.run_in_order([], lengths_and_sums(tiny_network()))) == []


def test_workers_are_side_by_side_with_a_core_each(monkeypatch):
    monkeypatch.setattr(engine, "WORKER_TOKENS", 5)
    meeting = threading.Barrier(2, timeout=20)

    def meet(some):
        meeting.wait()  # returns only if another worker is there at the same time
        torch.ones(1000, 1000) @ torch.ones(1000, 1000)  # a thread's number is settled by its use
        return [(torch.get_num_threads(), engine.cores())] * len(some)

    with_threads(
        3, lambda: list(engine.run_in_order(examples([5] * 8), meet, workers=2)), [(1, 1)] * 8
    )


def with_threads(count, run, expected):
    """What it says where torch has so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        assert run() == expected
        assert engine.cores() == count
    finally:
        torch.set_num_threads(before)


def threads_of_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_workers_leave_other_threads_what_they_had(monkeypatch):
    monkeypatch.setattr(engine, "WORKER_TOKENS", 5)
    monkeypatch.setattr(engine, "GROUP", 4)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        answers = engine.run_in_order(
            examples([5] * 8), lengths_and_sums(tiny_network()), workers=2
        )
        next(answers)
        assert threads_of_a_new_thread() == torch.get_num_threads() == 3, "at work"
        answers.close()
        assert threads_of_a_new_thread() == torch.get_num_threads() == 3, "abandoned"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("texts", "workers", "passes"),
    [
        (1, 2, {1}),
        (3, 2, {1}),  # three parts for two workers leave one idle for a quarter of the time
        (3, 4, {1}),
        (5, 4, {5}),  # five parts for four workers: three are idle in the second turn
        (8, 1, {8}),
    ],
)
def test_few_texts_are_one_batch_on_all_cores(monkeypatch, texts, workers, passes):
    monkeypatch.setattr(engine, "WORKER_TOKENS", 5)
    monkeypatch.setattr(engine, "BATCH_TOKENS", 1000)
    sizes = list(
        engine.run_in_order(
            examples([5] * texts), lambda some: [len(some)] * len(some), workers=workers
        )
    )
    assert set(sizes) == passes


def test_an_error_of_a_worker_is_an_error_of_the_run(monkeypatch):
    monkeypatch.setattr(engine, "WORKER_TOKENS", 5)

    def fail(some):
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        list(engine.run_in_order(examples([5] * 8), fail, workers=2))
