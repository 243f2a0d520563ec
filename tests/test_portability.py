"""What other systems lack is hidden here, and the package has to work without it."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
FILES = sorted((SOURCE / "unmask").rglob("*.py"))
CLIENT = Path(__file__).with_name("elsewhere.py")
PYTHONS = (11, 12, 13, 14)  # supported minor versions of Python 3


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("models") / "tiny"
    heads = bert_heads(pooler=True, tokens=True, pair=True)
    save_folder(path, tiny_network(heads), tokenizer)
    return path


@pytest.fixture
def elsewhere(tmp_path):
    """Run statements in a process from which everything that Windows lacks has been hidden."""

    def run(*statements):
        return subprocess.run(
            [sys.executable, CLIENT, *statements],
            capture_output=True,
            encoding="utf-8",
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        )

    return run


HIDDEN = {  # statements, and the errors that they end with where the system lacks something
    "import fcntl": "ModuleNotFoundError",
    "import resource": "ModuleNotFoundError",
    "from resource import getrlimit": "ModuleNotFoundError",
    "import os; os.uname()": "AttributeError",
    "import os; os.pwrite(1, b'', 0)": "AttributeError",
    "import os; os.fork()": "AttributeError",
    "import signal; signal.SIGALRM": "AttributeError",
    "import signal; signal.SIGKILL": "AttributeError",
    "open('/proc/cpuinfo')": "FileNotFoundError",
    "import pathlib; pathlib.Path('/proc/self/statm').read_text()": "FileNotFoundError",
    "import os; os.listdir('/proc')": "FileNotFoundError",
}


def test_what_windows_lacks_is_really_hidden(elsewhere):
    """Otherwise the tests below would show nothing."""
    done = elsewhere(*(f"print(raised_by({statement!r}))" for statement in HIDDEN))
    assert done.returncode == 0, done.stderr
    assert dict(zip(HIDDEN, done.stdout.split(), strict=True)) == HIDDEN


def test_every_module_can_be_imported_elsewhere(elsewhere):
    done = elsewhere("print(import_all())")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(FILES) - 1  # without __main__, which runs a command


@pytest.mark.slow
def test_commands_work_elsewhere(elsewhere, model, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat sat\nthe dog\n")
    done = elsewhere(
        f"unmask('tokenize', {str(model)!r}, 'the cat')",
        f"unmask('embed', {str(model)!r}, 'texts.txt', '--out', 'v.npy')",
        f"unmask('fill', {str(model)!r}, 'the [MASK] sat')",
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^the +5 ", done.stdout, re.MULTILINE)
    assert (tmp_path / "v.npy").stat().st_size == 128 + 2 * 16 * 4
    assert len(re.findall(r"\d%", done.stdout)) == 5  # of as many predictions
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt", "v.npy"}


@pytest.mark.slow
def test_a_model_is_trained_and_its_run_resumed_elsewhere(elsewhere, model, tmp_path):
    rows = [f"the {('cat', 'dog')[i % 2]} sat\t{i % 2}\n" for i in range(16)]
    (tmp_path / "data.tsv").write_text("".join(["text\tlabel\n", *rows]))
    verb = f"'finetune', 'classify', {str(model)!r}, '--train', 'data.tsv', '--dev', 'data.tsv'"
    verb += ", '--out', 'run', '--set', 'schedule.steps=2', '--set', 'tokenizer.max_length=16'"
    done = elsewhere(f"unmask({verb})", f"unmask({verb}, '--overwrite')")
    assert done.returncode == 0, done.stderr
    again = elsewhere(f"unmask({verb}, '--resume')")
    assert again.returncode == 0, again.stderr
    left = [path.name for path in (tmp_path / "run").rglob("*")]
    assert "model.safetensors" in left
    assert not [name for name in left if ".tmp-" in name], "unfinished folders or their locks"


@pytest.mark.slow
def test_types_hold_where_the_standard_library_is_that_of_windows(tmp_path):
    """A function that Windows lacks is an error to mypy, unless the code asks for it first."""
    pytest.importorskip("mypy", reason="needs mypy: pip install -e '.[check]'")
    command = [sys.executable, "-m", "mypy", "--platform", "win32", "--cache-dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def found_pythons():
    """Every Python on the PATH, and in the folders of pyenv, whose shims choose only one."""
    shims = os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    places += sorted(Path(shims).glob("versions/*/bin"))
    name = re.compile(r"python3\.(\d+)(\.exe)?")
    for place in places:
        for path in sorted(place.glob("python3.*")) if place.is_dir() else []:
            if match := name.fullmatch(path.name):
                yield int(match[1]), path


@pytest.fixture(params=PYTHONS, ids=lambda minor: f"3.{minor}")
def python(request):
    for minor, path in found_pythons():
        if minor == request.param:
            asked = subprocess.run([path, "-c", ""], capture_output=True, check=False)
            if asked.returncode == 0:  # not a shim for a version that is switched off
                return path
    pytest.skip(f"there is no Python 3.{request.param} on this machine")


IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import unmask
assert "torch" not in sys.modules and not any("site-packages" in path for path in sys.path)
for name in set(unmask.__all__) - set(unmask._LATE):  # classes of results need numpy or torch
    getattr(unmask, name)
print(unmask.__version__)
"""

COMPILE = """
import pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    compile(path.read_text("utf-8"), str(path), "exec")
"""


def test_the_package_is_imported_by_every_python_without_other_packages(python):
    done = subprocess.run(
        [python, "-I", "-S", "-B", "-c", IMPORT, SOURCE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\.\d+\S*\n", done.stdout)


def test_every_file_compiles_without_a_warning_in_every_python(python):
    done = subprocess.run(
        [python, "-I", "-S", "-B", "-W", "error", "-c", COMPILE, SOURCE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_stated_versions_of_python_are_those_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r":: 3\.(\d+)", "\n".join(project["classifiers"]))
    assert tuple(map(int, named)) == PYTHONS
    assert project["requires-python"] == f">=3.{PYTHONS[0]}"


def lines_end_as_the_system_likes(call):
    """Whether a call writes text and leaves open how its lines end."""
    if any(keyword.arg == "newline" for keyword in call.keywords):
        return False
    word = getattr(call.func, "attr", getattr(call.func, "id", None))
    if word == "write_text":
        return True
    if word not in ("open", "fdopen") or ast.unparse(call.func) == "os.open":
        return False
    texts = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
    modes = [str(a.value) for a in texts if isinstance(a, ast.Constant)]
    return any(set(mode) <= set("wxa+t") and set(mode) & set("wxa") for mode in modes)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("path.write_text(text, 'utf-8')", True),
        ("path.write_text(text, 'utf-8', newline='\\n')", False),
        ("path.open('w', encoding='utf-8')", True),
        ("path.open(mode='a', encoding='utf-8')", True),
        ("path.open('wb')", False),
        ("open(path, 'a', encoding='utf-8')", True),
        ("open(path, encoding='utf-8')", False),
        ("os.open(path, os.O_RDONLY)", False),
    ],
)
def test_calls_that_leave_line_ends_open_are_found(code, expected):
    assert lines_end_as_the_system_likes(ast.parse(code).body[0].value) is expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lines_that_are_written_end_alike_on_every_system(path):
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    found = [call.lineno for call in calls if lines_end_as_the_system_likes(call)]
    assert found == [], "these lines write text without newline="


def test_only_one_file_knows_where_the_development_data_is():
    """Its fixtures skip a test where the data is absent, so that a clone runs everywhere."""
    names = re.compile(r"""/ ["']shared["']|["'][./]*shared/data""")
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    found = [path.name for path in tests if names.search(path.read_text("utf-8"))]
    assert found == ["conftest.py"]
