"""Freed memory stays with the process: large tensors cost no page faults the second time."""

import subprocess
import sys

import pytest

MEASURE = """
import resource, sys, torch
from unmask.train.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
for round in range(40):
    if round == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(size, 2**18) for size in (2, 4, 8, 3)]  # in MB
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a switch of glibc")
def test_large_tensors_again_and_again_ask_the_system_for_less_memory():
    def faults(how):
        found = subprocess.run(
            [sys.executable, "-c", MEASURE, how], capture_output=True, text=True, check=True
        )
        return int(found.stdout)

    assert faults("kept") < faults("plain") / 2
