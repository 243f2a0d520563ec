"""Devices by name: those of this machine, and errors for others."""

import pytest
import torch

from unmask.system.devices import available_devices, device_of
from unmask.system.errors import SettingsError


def test_every_machine_has_a_cpu():
    assert available_devices()[0] == "cpu"
    assert device_of("cpu") == torch.device("cpu")


def test_gpus_are_listed_with_their_numbers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert available_devices() == ["cpu", "cuda", "cuda:0", "cuda:1"]
    assert device_of("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(SettingsError, match="cuda:2: this machine does not have it. .*cuda:1"):
        device_of("cuda:2")


def test_a_misspelled_device_is_named():
    with pytest.raises(SettingsError, match="unknown device 'cudda'; did you mean 'cuda'"):
        device_of("cudda")
