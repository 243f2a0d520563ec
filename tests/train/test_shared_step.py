"""A step of two processes, with whole weights and with shares: the gradients of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ROOT = Path(__file__).parents[2]


def step(place: Path, case: str, sizes: str, how: str, *, two: bool) -> dict[str, torch.Tensor]:
    out = place / f"{two}.safetensors"
    words = ["-m", "tests.train.shared_step", case, sizes, how, str(out)]
    done = subprocess.run(
        [sys.executable, *(TORCHRUN if two else []), *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return load_file(out)


@pytest.mark.parametrize(("sizes", "how"), [("3,3", "DDP"), ("2,2,2", "DDP"), ("3,3", "SHARD")])
@pytest.mark.parametrize("case", ["pairs", "idle head", "turns"])
def test_two_processes_have_the_losses_and_gradients_of_one(case, sizes, how, tmp_path):
    """With three batches the second process has fewer, which `Run` rules out with --shard.

    Of `turns`, each batch uses one of the heads.
    """
    expected = step(tmp_path, case, sizes, how, two=False)
    found = step(tmp_path, case, sizes, how, two=True)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4, msg=name)
    assert found["network.heads.head0.dense.weight"].any()


def test_an_own_parameter_that_couple_does_not_use_has_a_gradient_of_zero(tmp_path):
    expected = step(tmp_path, "unused", "3,3", "DDP", two=False)
    found = step(tmp_path, "unused", "3,3", "DDP", two=True)
    assert found["objective.heat"].tolist() == expected["objective.heat"].tolist() == [0.0, 0.0]
    torch.testing.assert_close(found["loss"], expected["loss"])
