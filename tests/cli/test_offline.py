"""`unmask get` without a network: one line, no traceback, and nothing left behind."""

import os
import subprocess
import sys

import pytest

PROXIES = {
    "refused": "http://127.0.0.1:9",
    "unknown host": "http://unreachable.invalid:3128",
    "no scheme": "nonsense://here",
}


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("name", ["minilm", "hf:google/bert", "hf:nobody/nothing"])
def test_no_network_is_an_error_in_one_line(tmp_path, name, proxy):
    if name.startswith("hf:"):
        pytest.importorskip("huggingface_hub")
    variables = {key: value for key, value in os.environ.items() if "PROXY" not in key.upper()}
    names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
    variables |= dict.fromkeys([*names, *map(str.lower, names)], PROXIES[proxy])
    variables |= {"UNMASK_HOME": str(tmp_path / "home"), "PIP_RETRIES": "0", "PIP_TIMEOUT": "5"}
    variables |= {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hub"), "NO_PROXY": ""}
    variables |= {"PIP_INDEX_URL": "https://pypi.org/simple", "no_proxy": ""}
    command = [sys.executable, "-m", "unmask", "get", name, "--quiet"]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "could not be fetched" in line
    assert not list((tmp_path / "home").rglob("*.safetensors"))
