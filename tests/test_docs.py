"""What the README and the pages say can be done, can be done."""

import ast
import re
import shlex
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from tests.pairs import write_pairs
from unmask.checkpoint.folder import load_folder
from unmask.infer.compiled.export import export_onnx
from unmask.system import plugins

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONGEST_LINE, LONGEST_CELL = 120, 160


def blocks(language):
    """Every fenced block of a language, with its page and line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text[: match.start()].count("\n") + 1
            found.append(pytest.param(match[1], id=f"{page.name}:{line}"))
    return found


def named_files():
    """The Python blocks that are files of their own: "```python name.py"."""
    for page in PAGES:
        block = re.compile(r"^```python ([\w]+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
        yield from block.findall(page.read_text())


@pytest.fixture(autouse=True)
def only_built_in():
    """What a block registers is forgotten after it."""
    before = deepcopy(plugins._registered)
    yield
    for kind, names in plugins._registered.items():
        for name in [*names]:
            if name not in before[kind]:
                del names[name]


@pytest.fixture
def workplace(tmp_path, monkeypatch, minilm):
    """A folder with the files that the pages' examples read."""
    (tmp_path / "texts.txt").write_text("A man eats bread.\nShares fell.\n" * 20)
    for name, start in (("train", 0), ("dev", 100)):
        rows = [
            f"{('good', 'bad')[i % 2]} film number {i}\t{i % 2}" for i in range(start, start + 32)
        ]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    write_pairs(tmp_path / "pairs", languages=("de", "en"))
    for name, code in named_files():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, workplace, minilm):
    if "minilm-onnx" in code:  # which a command above it has written
        export_onnx(load_folder(minilm), workplace / "minilm-onnx")
    exec(compile(code, "<block>", "exec"), {})


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("sh"))
def test_unmask_commands_run(block, workplace, unmask):
    for line in block.replace("\\\n", " ").splitlines():  # a command may continue on the next line
        command, *arguments = shlex.split(line, comments=True) or [""]
        if command == "unmask" and arguments[0] != "demo":
            done = unmask(*arguments)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


def shown_commands(page: Path) -> list[tuple[list[str], list[str]]]:
    """The commands that a page shows with their output: words, and lines printed."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    shown: list[tuple[list[str], list[str]]] = []
    for line in "".join(blocks).splitlines():
        if line.startswith("$ "):
            shown.append((shlex.split(line[2:]), []))
        else:
            shown[-1][1].append(line)
    return [(words, lines) for words, lines in shown if words[0] == "unmask"]


@pytest.mark.parametrize(
    "demo",
    [
        pytest.param(["--fast"], marks=pytest.mark.slow, id="short"),
        pytest.param([], marks=pytest.mark.full, id="as printed"),
    ],
)
def test_the_commands_of_the_readme_print_what_it_shows(demo, tmp_path, monkeypatch, minilm):
    """Numbers may differ, such as times; with the short demo, it has less text."""
    monkeypatch.chdir(tmp_path)
    commands = shown_commands(ROOT / "README.md")
    assert len(commands) == 5
    for words, lines in commands:
        arguments = words[1:] + (demo if words[1] == "demo" else [])
        done = subprocess.run(
            [sys.executable, "-m", "unmask", *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed = {
            " ".join(re.sub(r"[\d.,]+", "N", line).split())
            for line in (done.stdout + done.stderr).splitlines()
        }
        shown = {" ".join(re.sub(r"[\d.,]+", "N", line).split()) for line in lines}
        assert shown <= printed
    for name in ("answers.csv", "vectors.npy", "look.html"):
        assert (tmp_path / name).stat().st_size > 1000


def test_the_readme_has_at_most_a_hundred_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_make_commands_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= named <= targets


def test_no_page_waits_for_a_figure():
    assert not [page.name for page in PAGES if "{{" in page.read_text()]


def too_wide(text):
    """Lines that are too long, and cells of tables; a row of a table may be as long as it likes."""
    found, in_code = [], False
    for number, line in enumerate(text.splitlines(), start=1):
        in_code ^= line.lstrip().startswith("```")
        if line.startswith("|") and not in_code:
            cells = re.split(r"(?<!\\)\|", line.strip("| "))
            found += [number for cell in cells if len(cell.strip()) > LONGEST_CELL]
        elif len(line) > LONGEST_LINE:
            found.append(number)
    return found


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("C*.md"))], ids=lambda page: page.name)
def test_no_line_of_a_page_and_no_cell_of_a_table_is_too_wide(page):
    assert too_wide(page.read_text()) == []


def test_wide_lines_and_wide_cells_are_found():
    def row(*widths):
        return f"| {' | '.join('x' * width for width in widths)} |"

    assert too_wide(f"{'x' * 120}\n{'x' * 121}\n") == [2]
    assert too_wide(f"{row(160, 160)}\n{row(161, 3)}\n{row(3, 161)}\n") == [2, 3]
    assert too_wide(f"| {'x' * 81}\\|{'x' * 81} |\n") == [1]
    assert too_wide(f"```\n{row(60, 60)}\n```\n{row(60, 60)}\n") == [2]


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} -> {target}"


@pytest.mark.slow
def test_every_measurement_that_is_named_can_be_run():
    """By the Makefile or on a page: `python -m benchmarks NAME`."""
    text = "".join(page.read_text() for page in [*PAGES, ROOT / "Makefile"])
    named = set(re.findall(r"-m benchmarks ([a-z0-9]+)", text))
    command = [sys.executable, "-m", "benchmarks"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert {"all", "pretrain", "budget"} <= named
    assert named <= set(done.stderr.split()[-1].split("|"))


LAYERS = "cli server jobs evaluation train inspect infer tasks objectives checkpoint model".split()


def walks() -> list[list[tuple[str, str]]]:
    """The blocks of docs/architecture.md that follow a command: its files and what they define."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## From a command to its result")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^    \S.*\n)+", section, re.M)
    return [[(line.split()[0], line.split()[1]) for line in block.splitlines()] for block in blocks]


def test_the_walks_of_the_map_name_what_is_there_and_only_descend():
    assert len(walks()) == 5
    for walk in walks():
        assert len(walk) <= 10
        levels = [LAYERS.index(file.partition("/")[0]) for file, _ in walk]
        assert levels == sorted(levels)
        for file, name in walk:
            owner, _, method = name.rpartition(".")
            nodes = list(ast.walk(ast.parse((ROOT / "src" / "unmask" / file).read_text())))
            if owner:
                nodes = [
                    child for n in nodes if getattr(n, "name", "") == owner for child in n.body
                ]
            assert any(getattr(node, "name", "") == method for node in nodes), f"{file}: {name}"


def test_the_reading_path_is_short_and_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## The reading path")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w/]+\.py)`", section)
    assert "model/attention.py" in files
    lines = sum(len((ROOT / "src" / "unmask" / f).read_text().splitlines()) for f in files)
    assert 2000 <= lines <= 3000


def test_the_files_that_answer_a_question_are_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## Where to look")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w/]+\.py)`", section)
    assert len(set(files)) >= 10
    assert [file for file in files if not (ROOT / "src" / "unmask" / file).exists()] == []
