"""Requested precision and device -> fp32, or bf16 where the hardware really supports it."""

import os
import subprocess
import sys
from functools import cache
from typing import Literal

import torch

from unmask.system.errors import SettingsError

Precision = Literal["fp32", "bf16"]
TRIAL = """
import torch
x = torch.ones(64, 64, dtype=torch.bfloat16)
raise SystemExit(float((x @ x).sum()) != 64.0**3)
"""


def choose_precision(requested: str, device: torch.device) -> Precision:
    """Choose bf16 if it is requested, or for "auto" if the hardware has it; test it on a CPU."""
    if requested == "fp32" or (requested == "auto" and device.type == "cpu" and not _has_bf16()):
        return "fp32"
    if requested == "auto" and device.type not in ("cpu", "cuda"):
        return "fp32"  # nothing tells whether other devices have bf16
    if device.type == "cuda":
        return "bf16" if requested == "bf16" or torch.cuda.is_bf16_supported() else "fp32"
    # Requested, or reported by the CPU: what it reports may still be an illegal instruction.
    if bf16_works():
        return "bf16"
    if requested == "auto":
        return "fp32"
    raise SettingsError(
        "loop.precision is bf16, but bf16 matrix products fail with an illegal instruction on this "
        "machine: its CPU reports AMX units, which the operating system does not let programs use. "
        "Set loop.precision to fp32, or set the environment variable "
        "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16."
    )


def _has_bf16() -> bool:
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


@cache
def bf16_works() -> bool:
    """Try a bf16 product, in a child process if it might end with an illegal instruction.

    Some virtual machines report AMX without letting programs use it.
    """
    if not getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)():
        return True
    if not hasattr(os, "fork"):  # Windows; slower, because a new process imports torch again
        # -P: a torch.py in the working directory must not be imported.
        trial = [sys.executable, "-P", "-c", TRIAL]
        return subprocess.run(trial, capture_output=True, check=False).returncode == 0
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # fork copies no threads: waiting for the parent's would hang
        x = torch.ones(64, 64, dtype=torch.bfloat16)
        code = 0 if float((x @ x).sum()) == 64.0**3 else 1
        os._exit(code)  # no cleanup: files, locks and handlers belong to the parent
    return os.waitpid(child, 0)[1] == 0
