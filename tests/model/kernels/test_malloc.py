"""Freed memory stays with the process, to be used again."""

import subprocess
import sys

import pytest

MEASURE = """
import os, sys, torch
from unmask.model.kernels.malloc import keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20

if sys.argv[1] == "kept":
    assert keep_freed_memory()
before = resident()
tensors = [torch.ones(24, 2**18) for _ in range(10)]
assert resident() - before > 230
del tensors
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a switch of glibc")
@pytest.mark.parametrize(("how", "least", "most"), [("kept", 200, 300), ("plain", -50, 50)])
def test_of_240_megabytes_that_were_freed_almost_all_stay(how, least, most):
    command = [sys.executable, "-c", MEASURE, how]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert least < int(found.stdout) < most
