"""Pickled weights are read with limits on memory and time, or not at all."""

import pytest
import torch

from unmask.checkpoint import pickled
from unmask.checkpoint.pickled import unpickle
from unmask.system.errors import FolderError


@pytest.fixture
def weights(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    return tmp_path / "pytorch_model.bin"


def test_nothing_is_unpickled_where_python_cannot_set_limits(weights, tmp_path, monkeypatch):
    """On Windows, Python has no module `resource`."""
    monkeypatch.setattr(pickled, "resource", None)
    monkeypatch.setattr(pickled.subprocess, "run", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(FolderError) as error:
        unpickle(weights, tmp_path / "model.safetensors")
    assert str(error.value).startswith(
        f"{weights}: is a pickle, which unmask reads only in a process with"
    )
    assert "no module 'resource'" in str(error.value)
    assert "Convert it on Linux, or get the model's safetensors file." in str(error.value)
    assert not (tmp_path / "model.safetensors").exists()


def test_nothing_is_unpickled_where_the_system_refuses_the_limits(weights, tmp_path, monkeypatch):
    """As macOS may."""

    def refuse(which, limits):
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(pickled.resource, "setrlimit", refuse)
    with pytest.raises(FolderError, match="the system refused to set them.*Convert it on Linux"):
        unpickle(weights, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.slow
def test_with_limits_the_weights_are_read(weights, tmp_path):
    from safetensors.torch import load_file

    unpickle(weights, tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors")["a"].tolist() == [0, 0]
