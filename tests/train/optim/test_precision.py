"""Which precision a run computes in: what is asked for, or what this machine can really do."""

import pytest
import torch

from unmask.system.errors import SettingsError
from unmask.train.optim import precision
from unmask.train.optim.precision import choose_precision

CPU = torch.device("cpu")


@pytest.fixture
def reports_bf16(monkeypatch):
    """A CPU that says it has bf16 units."""
    monkeypatch.setattr(precision, "_has_bf16", lambda: True)


def test_auto_takes_bf16_where_it_works(reports_bf16, monkeypatch):
    monkeypatch.setattr(precision, "bf16_works", lambda: True)
    assert choose_precision("auto", CPU) == "bf16"


def test_auto_takes_fp32_where_bf16_ends_with_an_illegal_instruction(reports_bf16, monkeypatch):
    monkeypatch.setattr(precision, "bf16_works", lambda: False)
    assert choose_precision("auto", CPU) == "fp32"


def test_bf16_is_refused_where_it_would_kill_the_process(reports_bf16, monkeypatch):
    monkeypatch.setattr(precision, "bf16_works", lambda: False)
    with pytest.raises(SettingsError, match="illegal instruction.*fp32.*ONEDNN_MAX_CPU_ISA"):
        choose_precision("bf16", CPU)


def test_fp32_is_never_questioned(monkeypatch):
    monkeypatch.setattr(precision, "bf16_works", lambda: pytest.fail("nothing needs to be tried"))
    assert choose_precision("fp32", CPU) == "fp32"


@pytest.mark.skipif(
    not precision.bf16_works(), reason="products in bf16 do not work on this machine"
)
def test_where_it_is_said_to_work_a_layer_in_bf16_trains():
    layer = torch.nn.Linear(64, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.ones(8, 64)).float().sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


@pytest.fixture
def without_fork(monkeypatch):
    """A machine that reports AMX, and a system on which a process cannot be forked."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.delattr(precision.os, "fork")
    precision.bf16_works.cache_clear()
    yield
    precision.bf16_works.cache_clear()


@pytest.mark.parametrize(
    ("trial", "works"),
    [
        ("", True),
        ("raise SystemExit(1)", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
    ],
)
def test_without_fork_a_new_process_tries_the_product(without_fork, monkeypatch, trial, works):
    monkeypatch.setattr(precision, "TRIAL", trial)
    assert precision.bf16_works() is works


@pytest.mark.slow
def test_a_new_process_finds_what_a_forked_one_finds(monkeypatch, request):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    precision.bf16_works.cache_clear()
    forked = precision.bf16_works()
    request.getfixturevalue("without_fork")
    assert precision.bf16_works() is forked
