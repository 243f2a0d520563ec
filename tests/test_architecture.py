"""The house rules that a machine can check."""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unmask"
FILES = sorted(SOURCE.rglob("*.py"))
# Packages whose files all implement one interface: their number is the number of implementations.
FLAT_FAMILIES = {"cli", "objectives", "tasks"}


def name(path):
    return path.relative_to(ROOT).as_posix()


def test_the_documented_tree_is_the_one_on_disk():
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.partition("```tree\n")[2].partition("```")[0]
    documented, folders = set(), []
    for line in tree.splitlines():
        entry = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [entry.rstrip("/")]
        if entry.endswith(".py"):
            documented.add("/".join(folders))
    assert documented == {name(path) for path in FILES if path.name != "__init__.py"} | {
        name(path) for path in FILES if path.parent == SOURCE
    }


def test_layers_are_kept():
    tool = Path(sys.executable).with_name("lint-imports")
    if not tool.exists():
        pytest.skip("import-linter is not installed (pip install -e '.[check]')")
    done = subprocess.run(
        [tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def long_functions(text, most=60):
    """The functions of a file, asynchronous ones included, that have more than `most` lines.

    A docstring describes every argument, so its lines do not count.
    """
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 - lines_of_docstring(node) > most
    ]


def lines_of_docstring(function):
    """The number of lines of a function's docstring; 0 without one."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    return first.end_lineno - first.lineno + 1 if documented else 0


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_can_be_read_in_one_sitting(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 350
    assert ast.get_docstring(ast.parse(text)), "line 1 says what goes in and what comes out"
    assert long_functions(text) == []


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_function_of_61_lines_is_too_long(keyword):
    def function(lines):
        return f"{keyword} act():\n" + "    pass\n" * (lines - 1)

    assert long_functions(function(60)) == []
    assert long_functions(function(61)) == ["act"]
    inner = "".join(f"    {line}\n" for line in function(61).splitlines())
    assert long_functions(f"class Thing:\n{inner}") == ["act"]


def test_the_lines_of_a_docstring_do_not_count():
    docstring = '    """Act.\n\n    Args:\n        None.\n    """\n'
    assert long_functions("def act():\n" + docstring + "    pass\n" * 59) == []
    assert long_functions("def act():\n" + docstring + "    pass\n" * 60) == ["act"]


def public_classes(text):
    """The names of the classes at the top level of a file, without those that are private."""
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return [node.name for node in nodes if not node.name.startswith("_")]


def duplicates(files):
    """Class names that more than one of these files defines (path -> text), and the paths."""
    places = defaultdict(list)
    for path, text in files.items():
        for class_name in public_classes(text):
            places[class_name].append(path)
    return {class_name: paths for class_name, paths in places.items() if len(paths) > 1}


def test_no_class_name_has_two_meanings():
    assert duplicates({name(path): path.read_text() for path in FILES}) == {}


def test_a_class_name_that_two_files_define_is_found():
    files = {
        "a.py": "class Row: ...\nclass _Row: ...\nclass Batch:\n    class Item: ...\n",
        "b.py": "class Row(dict): ...\nclass _Row: ...\nclass Item: ...\n",
    }
    assert duplicates(files) == {"Row": ["a.py", "b.py"]}


def crowded(paths, most=12):
    """Packages with more than `most` files, beside `__init__.py`, and how many they have."""
    modules = [path for path in paths if path.name != "__init__.py"]
    sizes = Counter(path.parent.as_posix() for path in modules)
    return {
        package: size
        for package, size in sizes.items()
        if size > most and package not in FLAT_FAMILIES
    }


def test_a_package_has_at_most_twelve_files():
    assert crowded(path.relative_to(SOURCE) for path in FILES) == {}


def test_a_thirteenth_file_is_found_unless_its_package_is_a_flat_family():
    def package(folder, files):
        return [Path(folder, "__init__.py"), *(Path(folder, f"m{i}.py") for i in range(files))]

    assert crowded(package("model", 12)) == {}
    assert crowded(package("model", 13) + package("tasks", 20)) == {"model": 13}
    assert crowded(package("model/tasks", 13)) == {"model/tasks": 13}


def test_no_file_is_a_drawer_for_odds_and_ends():
    odd = {"utils", "util", "helpers", "helper", "common", "misc", "base_"}
    assert not [path for path in FILES if path.stem in odd]


def test_nothing_unpickles_or_evaluates_outside_the_one_reviewed_file():
    danger = re.compile(
        r"\b(pickle\.\w|cPickle|torch\.load|eval\(|exec\(|shell=True|yaml\.load|extractall)"
    )
    found = [name(path) for path in FILES if danger.search(path.read_text().replace(".eval(", ""))]
    assert found == ["src/unmask/checkpoint/pickled.py"]


def test_only_the_command_line_prints():
    """Elsewhere lines go to a Console or a callable, so that a library call is silent."""
    other = [path for path in FILES if path.relative_to(SOURCE).parts[0] not in ("cli", "train")]
    found = []
    for path in other:
        for node in ast.walk(ast.parse(path.read_text())):
            prints = isinstance(node, ast.Name) and node.id == "print"
            writes = isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr")
            if prints or (writes and getattr(node.value, "id", "") == "sys"):
                found.append(f"{name(path)}:{node.lineno}")
    assert not found


def reads_or_writes_in_the_locales_encoding(call):
    """Whether a call handles text as a file's or a process's, and names no encoding for it."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in named:
        return False
    called, given = call.func, call.args
    if any(getattr(named.get(own), "value", 0) is True for own in ("text", "universal_newlines")):
        return True  # of subprocess
    word = getattr(called, "attr", getattr(called, "id", None))
    if word in ("read_text", "write_text"):
        return len(given) <= (word == "write_text")  # the encoding comes after the text
    if word == "TextIOWrapper":
        return len(given) < 2
    of_a_module = ast.unparse(called).split(".")[0] in ("io", "gzip", "bz2", "lzma", "os", "codecs")
    if word not in ("open", "fdopen") or ast.unparse(called) == "os.open":
        return False
    at = 0 if isinstance(called, ast.Attribute) and not of_a_module else 1  # Path.open: no path
    mode = named.get("mode", given[at] if len(given) > at else ast.Constant("r"))
    if not isinstance(mode, ast.Constant) or not set(str(mode.value)) <= set("rwxabt+"):
        return False  # of an archive, which opens its members by name, as bytes
    return "b" not in mode.value and len(given) <= at + 2


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open(path)", True),
        ("open(path, 'w')", True),
        ("open(path, 'rb')", False),
        ("open(path, encoding='utf-8')", False),
        ("open(path, 'w', -1, 'utf-8')", False),
        ("path.open()", True),
        ("path.open('a')", True),
        ("path.open(mode='w')", True),
        ("path.open('w', -1, 'utf-8')", False),
        ("path.open('r+b')", False),
        ("gzip.open(path, 'rt')", True),
        ("os.fdopen(handle, 'w')", True),
        ("os.open(path, os.O_RDONLY)", False),
        ("archive.open(name)", False),
        ("(folder / name).read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.read_text(errors='replace')", True),
        ("path.write_text(text)", True),
        ("path.write_text(text, 'utf-8')", False),
        ("subprocess.run(command, text=True)", True),
        ("subprocess.run(command, encoding='utf-8')", False),
        ("io.TextIOWrapper(raw)", True),
    ],
)
def test_calls_that_use_the_locales_encoding_are_found(code, expected):
    assert reads_or_writes_in_the_locales_encoding(ast.parse(code).body[0].value) is expected


@pytest.mark.parametrize("path", FILES, ids=name)
def test_text_is_read_and_written_as_utf_8_whatever_the_locale(path):
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    found = [call.lineno for call in calls if reads_or_writes_in_the_locales_encoding(call)]
    assert found == [], "these lines name no encoding"


def test_hugging_faces_setting_names_live_in_one_file():
    theirs = re.compile(r"hidden_size|num_hidden_layers|num_attention_heads|intermediate_size")
    found = [name(path) for path in FILES if theirs.search(path.read_text())]
    assert found == ["src/unmask/checkpoint/names.py"]


def test_tests_mirror_the_source():
    folders = {path.relative_to(SOURCE).parts[0] for path in FILES if path.parent != SOURCE}
    assert folders <= {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}


def test_the_project_speaks_of_itself_alone():
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    machine = re.compile(r"/(work|root|home/\w+)/")
    for file in listed.stdout.split():
        path = ROOT / file
        if path.is_file() and path != Path(__file__):
            assert not machine.search(path.read_text(errors="replace")), file
