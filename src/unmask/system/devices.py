"""The name of a device -> the device of this process, if the machine has it.

    auto      the GPU of this process, if CUDA finds one, else the CPU
    cpu       the CPU
    cuda      a GPU; under torchrun, each process takes one of its own
    cuda:N    the GPU with number N
    mps       the GPU of a Mac; never chosen by auto

Everything is tested on CPUs only. What runs on a GPU has not been tried.
"""

import os
import re
from typing import TYPE_CHECKING

from unmask.system.errors import SettingsError, unknown_name

if TYPE_CHECKING:
    import torch

DEVICES = "auto", "cpu", "cuda", "cuda:0", "mps"  # those that help and completion name
_VALID = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")


def check_device(name: str) -> None:
    """Refuse a device that is misspelled, or that this machine does not have.

    torch is imported only for devices that it has to look for.
    """
    if not _VALID.fullmatch(name):
        raise SettingsError(unknown_name("device", name, DEVICES, in_order=True))
    if name in ("auto", "cpu"):
        return
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and name != "cuda":
        raise SettingsError(
            f"device {name}: {world} processes cannot share one device. Use cuda, which gives each "
            "process a GPU of its own, or cpu."
        )
    present = available_devices()
    if name not in present:
        raise SettingsError(
            f"device {name}: this machine does not have it. Available: auto, {', '.join(present)}."
        )


def available_devices() -> list[str]:
    """List the devices of this machine by name. Imports torch."""
    import torch

    names = ["cpu"]
    if torch.cuda.is_available():
        names += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def device_of(name: str = "auto", local_rank: int = 0) -> "torch.device":
    """Return the device of a process; `local_rank` numbers the processes of this machine."""
    import torch

    check_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cuda":
        return torch.device(name)
    if local_rank >= torch.cuda.device_count():
        raise SettingsError(
            f"device cuda: process {local_rank + 1} of this machine has no GPU of its own; there "
            f"are {torch.cuda.device_count()}. Start fewer processes, or use cpu."
        )
    return torch.device("cuda", local_rank)
