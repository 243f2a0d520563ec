"""The name of a device -> the device, if this machine has it.

Everything is tested on CPUs only. What runs on a GPU has not been tried.
"""

from typing import TYPE_CHECKING

from unmask.system.errors import SettingsError, unknown_name

if TYPE_CHECKING:
    import torch

KINDS = ("cpu", "cuda", "mps")


def available_devices() -> list[str]:
    """List the devices of this machine by name. Imports torch."""
    import torch

    names = ["cpu"]
    if torch.cuda.is_available():
        names += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def device_of(name: str) -> "torch.device":
    """Return a device; refuse one that is misspelled, or that this machine does not have."""
    import torch

    if name.partition(":")[0] not in KINDS:
        raise SettingsError(unknown_name("device", name, KINDS))
    present = available_devices()
    if name not in present:
        raise SettingsError(
            f"device {name}: this machine does not have it. Available: {', '.join(present)}."
        )
    return torch.device(name)
