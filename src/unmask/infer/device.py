"""Name of a device -> the device, if this machine has it."""

import torch

from unmask.system.errors import SettingsError


def available_devices() -> list[str]:
    """List the devices of this machine by the names that torch gives them."""
    names = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def usable_device(name: str) -> torch.device:
    """Return a device by its name; refuse one that this machine does not have."""
    known = available_devices()
    if name in known or (name in ("cuda", "mps") and any(one.startswith(name) for one in known)):
        return torch.device(name)
    raise SettingsError(f"device {name!r:.40}: this machine has {', '.join(known)}.")
