"""docs/api.md and docs/cli.md are what the code says."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import unmask

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "reference.py"


@pytest.fixture(scope="module")
def reference():
    if not SCRIPT.exists():
        pytest.skip("tools/ is not part of the source distribution")
    spec = spec_from_file_location("reference", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def in_a_new_process():
    """Pages as written without the plugins and terminals of other tests."""
    command = [sys.executable, str(SCRIPT), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_pages_are_those_of_the_code(reference, in_a_new_process):
    assert in_a_new_process.returncode == 0, in_a_new_process.stderr


def test_a_page_that_differs_is_named_with_the_command_that_writes_it(
    reference, tmp_path, monkeypatch
):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["reference.py"])
    reference.main()
    monkeypatch.setattr(sys, "argv", ["reference.py", "--check"])
    reference.main()
    page = tmp_path / "docs" / "api.md"
    page.write_text(page.read_text().replace("unmask.load", "unmask.laod"))
    with pytest.raises(SystemExit, match=r"docs/api\.md: .* Run: python tools/reference\.py"):
        reference.main()


def test_every_name_has_its_section(reference):
    page = reference.api()
    for name in unmask.__all__:
        if name != "__version__":
            assert f"`unmask.{name}`" in page or f"| `{name}` |" in page, name
    assert "probability: float\n" in page, "results show their fields"
    public = [name for name in vars(unmask.Model) if name[0] != "_"]
    for name in {*public} - {"load", "encode"}:  # unmask.load; another name of embed
        assert f"### `model.{name}`" in page, name


def test_every_command_has_its_section(reference):
    page = reference.cli()
    for name in ("pretrain", "finetune", "translate train", "vocab learn", "serve"):
        assert f"# `unmask {name}`\n" in page
    assert "`--learning-rate`, `--lr`: " in page
    assert "`--out` (required): " in page


def test_lines_and_cells_fit(reference):
    for page in (reference.api(), reference.cli()):
        assert not [line for line in page.splitlines() if len(line) > 120]
    with pytest.raises(SystemExit, match="a table cell has 161 characters"):
        reference.table(("name",), [("a" * 161,)])


def test_code_is_not_broken_at_the_end_of_a_line(reference):
    text = reference.paragraph("word " * 23 + "`pip install this`")
    assert text.splitlines()[-1] == "`pip install this`"
