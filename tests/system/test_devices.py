"""Devices by name. These tests need no GPU: they replace what torch reports."""

import pytest
import torch

from unmask.system.devices import available_devices, check_device, device_of
from unmask.system.distributed import join_processes
from unmask.system.errors import SettingsError
from unmask.train.optim.precision import choose_precision


@pytest.fixture
def machine(monkeypatch):
    """A machine with a number of CUDA GPUs, and optionally the GPU of a Mac."""

    def pretend(gpus, *, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


def test_devices_are_listed_by_name(machine):
    machine(0)
    assert available_devices() == ["cpu"]
    machine(2, mps=True)
    assert available_devices() == ["cpu", "cuda", "cuda:0", "cuda:1", "mps"]


def test_auto_is_the_gpu_of_the_process_if_there_is_one(machine):
    machine(0, mps=True)
    assert device_of("auto") == torch.device("cpu")
    machine(2)
    assert device_of("auto", 1) == device_of("cuda", 1) == torch.device("cuda", 1)


def test_a_device_is_taken_by_its_name(machine):
    machine(2, mps=True)
    for name in ("cpu", "cuda:1", "mps"):
        assert device_of(name) == torch.device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(machine, name):
    machine(0)
    with pytest.raises(SettingsError, match=rf"^device {name}: .* Available: auto, cpu\.$"):
        check_device(name)


def test_a_gpu_with_a_number_too_high_is_refused(machine):
    machine(2)
    with pytest.raises(SettingsError, match=r"Available: auto, cpu, cuda, cuda:0, cuda:1\.$"):
        check_device("cuda:2")


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "CPU", ""])
def test_a_name_that_means_nothing_is_refused(name):
    with pytest.raises(SettingsError, match="The devices are auto, cpu, cuda, cuda:0, mps"):
        check_device(name)


def test_several_processes_do_not_share_one_gpu(machine, monkeypatch):
    machine(2, mps=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("cuda:0", "mps"):
        with pytest.raises(SettingsError, match="2 processes cannot share one device"):
            check_device(name)
    check_device("cuda")
    check_device("cpu")


def test_a_process_without_a_gpu_of_its_own_is_refused(machine):
    machine(2)
    with pytest.raises(SettingsError, match="process 3 of this machine has no GPU of its own"):
        device_of("cuda", 2)


def test_a_run_computes_on_the_device_that_was_asked_for(machine):
    machine(1)
    with join_processes("cpu") as processes:
        assert processes.device == torch.device("cpu")
    with join_processes() as processes:
        assert processes.device == torch.device("cuda", 0)


def test_a_device_that_may_not_have_bf16_computes_in_fp32():
    assert choose_precision("auto", torch.device("mps")) == "fp32"
