"""Several processes: results in the order of the jobs, little read ahead, and no silent death.

The work is done by functions of the standard library, which every process knows.
"""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count, islice

import pytest

from unmask.system.errors import UserError
from unmask.system.process_pool import map_in_order

WORKERS = [1, 2]


@pytest.mark.parametrize("workers", WORKERS)
def test_every_job_comes_back_with_its_result(workers):
    assert list(map_in_order(math.factorial, [3, 4, 5], workers)) == [(3, 6), (4, 24), (5, 120)]


def test_results_come_in_the_order_of_the_jobs_though_the_first_takes_longest():
    jobs = [0.3, 0.0, 0.1, 0.0]
    assert [job for job, _ in map_in_order(time.sleep, jobs, 2)] == jobs


@pytest.mark.parametrize("workers", WORKERS)
def test_no_jobs_give_no_results(workers):
    assert list(map_in_order(abs, [], workers)) == []


def test_jobs_are_read_a_little_ahead_of_the_workers_however_many_there_are():
    read, ahead = [], []
    jobs = (read.append(number) or number for number in count())
    for done, (job, _) in enumerate(islice(map_in_order(abs, jobs, 2), 20), start=1):
        assert job == done - 1
        ahead.append(len(read) - done)
    assert max(ahead) <= 2 + 1  # one for each worker, and one that waits for the first free


def test_one_worker_reads_a_job_when_its_result_is_asked_for():
    jobs = iter([1, 2, 3])
    results = map_in_order(abs, jobs, 1)
    assert next(results) == (1, 1)
    assert list(jobs) == [2, 3]


def test_a_reader_that_stops_early_leaves_no_process_behind():
    results = map_in_order(abs, count(), 2)
    assert next(results) == (0, 0)
    results.close()
    assert multiprocessing.active_children() == []


def test_a_killed_worker_is_said_with_what_to_do():
    says = r"a worker process was killed, .*is kept\. Run the same command again with fewer --wor"
    with pytest.raises(UserError, match=says):
        list(map_in_order(signal.raise_signal, [signal.SIGKILL], 2))


@pytest.mark.parametrize("workers", WORKERS)
def test_what_goes_wrong_in_a_worker_goes_wrong_here(workers):
    results = map_in_order(int, ["1", "one"], workers)
    assert next(results) == ("1", 1)
    with pytest.raises(ValueError, match="'one'"):
        next(results)


def test_every_worker_keeps_to_one_thread():
    assert list(map_in_order(os.getenv, ["RAYON_NUM_THREADS"], 2)) == [("RAYON_NUM_THREADS", "1")]


def test_workers_end_with_the_process_that_started_them():
    program = "import time, itertools\nfrom unmask.system.process_pool import map_in_order\n"
    program += "for _ in map_in_order(time.sleep, itertools.repeat(0.01), 2): print(1, flush=True)"
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.read(1)
        process.kill()  # this one alone, as the system does when memory runs out
        process.communicate(timeout=3)  # the output ends when the last of them does
    finally:
        process.stdout.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
