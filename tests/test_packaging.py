"""A wheel and an sdist hold all that is needed, and work outside of the repository."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unmask"
BINARIES = "Scripts" if os.name == "nt" else "bin"
REVIEWS = [
    (("good", "bad")[i % 2], f"{('fine', 'poor')[i % 2]} film number {i}") for i in range(40)
]
RECIPES = "from unmask.train.compose import known_recipes; print(*known_recipes())"


def run(command, place, **more):
    """Run a command outside of the repository, in which nothing finds its source files."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=place,
        env=kept | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
        **more,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build_wheel(source, folder):
    """Build a wheel of a source tree or an sdist; hatchling is fetched only if it is missing."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    if find_spec("hatchling"):
        command.append("--no-build-isolation")
    run([*command, source], folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def borrowed(wheel, tmp_path_factory):
    """An environment with the wheel, which finds what it depends on where the tests find it.

    Site packages that a .pth file names are searched, but their own .pth files are not read: an
    editable installation of the project is not found.
    """
    place = tmp_path_factory.mktemp("borrowed")
    venv.create(place, with_pip=False, symlinks=os.name != "nt")
    binary = place / BINARIES
    python = binary / "python"
    packages = Path(
        run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], place).strip()
    )
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    run([*pip, "--no-index", wheel], place)
    return binary


def try_out(binary, place):
    """Help, the demo, and a classifier from a small file, with the model that the demo trains."""
    assert "finetune" in run([binary / "unmask", "--help"], place)
    where = "import unmask; print(unmask.__file__)"
    assert Path(run([binary / "python", "-c", where], place).strip()).is_relative_to(binary.parent)
    told = run([binary / "unmask", "demo", "--fast", "--out", "demo"], place)
    assert re.search(r"fine-tune twice +\d", told)
    for name in ("train", "dev"):
        rows = [f"{text}\t{label}\n" for label, text in REVIEWS]
        (place / f"{name}.tsv").write_text("".join(["text\tlabel\n", *rows]))
    command = [binary / "unmask", "finetune", "classify", Path("demo", "pretrain", "model")]
    command += ["--train", "train.tsv", "--dev", "dev.tsv", "--out", "reviews"]
    run([*command, "--set", "schedule.steps=40"], place)
    (place / "questions.tsv").write_text("text\nfine film number 3\npoor film number 4\n")
    answers = run([binary / "unmask", "predict", "reviews/model", "questions.tsv"], place)
    assert len(answers.splitlines()) == 2
    assert all(re.search("good|bad", line) for line in answers.splitlines())
    run([binary / "unmask", "look", "reviews/model", "a film", "--out", "look.html"], place)
    assert "</script>" in (place / "look.html").read_text("utf-8")  # from the page's files
    named = run([binary / "python", "-c", RECIPES], place).split()
    assert set(named) == {path.stem for path in (ROOT / "recipes").glob("*.toml")}


def members(archive):
    """The names in an archive, below its outermost folder if it is an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return set(opened.namelist())
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


def test_the_page_on_installing_lists_every_optional_dependency():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(table["optional-dependencies"])
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    section = page.partition("## Optional dependencies")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert extras - {"test", "check", "bench"} == listed
    (torch,) = (need for need in table["dependencies"] if need.startswith("torch"))
    assert f'pip install "{torch}" --index-url https://download.pytorch.org/whl/cpu' in page


@pytest.mark.slow
def test_the_wheel_holds_the_code_the_recipes_and_the_files_of_the_page(wheel):
    code = [p.relative_to(ROOT / "src") for p in SOURCE.rglob("*") if p.is_file()]
    recipes = [Path("unmask") / p.relative_to(ROOT) for p in (ROOT / "recipes").rglob("*.toml")]
    expected = {path.as_posix() for path in [*code, *recipes] if "__pycache__" not in path.parts}
    found = {name for name in members(wheel) if ".dist-info/" not in name}
    assert expected == found
    assert {"unmask/page/index.html", "unmask/page/app.js", "unmask/page/style.css"} <= found
    assert any(name.startswith("unmask/recipes/") for name in found)


@pytest.mark.slow
def test_the_wheel_names_what_it_needs_and_where_it_works(wheel):
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith("dist-info/METADATA"))
        text = opened.read(name).decode("utf-8")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert re.search(r"^Requires-Python: >=3\.11$", text, re.MULTILINE)
    (line,) = re.findall(r"^Requires-Dist: filelock.*", text, re.MULTILINE)
    assert "sys_platform == 'win32'" in line
    for system in ("Linux", "MacOS X", "Windows"):
        assert re.search(rf"^Classifier: Operating System :: .*{system}$", text, re.MULTILINE)


@pytest.mark.slow
def test_the_wheel_works_outside_of_the_repository(borrowed, tmp_path):
    try_out(borrowed, tmp_path)


def clean_environment(place):
    """Make an environment with pip and nothing else."""
    venv.create(place, with_pip=True, symlinks=os.name != "nt")
    return place / BINARIES


def install(binary, place, *what):
    pip = [binary / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--constraint", ROOT / "constraints.txt", *what], place)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The wheel and the sdist, as they would be uploaded."""
    place = tmp_path_factory.mktemp("archives")
    binary = clean_environment(place / "builder")
    install(binary, place, "hatchling")
    build = [
        binary / "python",
        "-m",
        "hatchling",
        "build",
        "-t",
        "sdist",
        "-t",
        "wheel",
        "-d",
        place,
    ]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (sdist,), (wheel,) = place.glob("*.tar.gz"), place.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_would_be_uploaded_works_in_a_clean_environment(archives, kind, tmp_path):
    binary = clean_environment(tmp_path / "environment")
    install(binary, tmp_path, archives[kind])
    (tmp_path / "work").mkdir()
    try_out(binary, tmp_path / "work")
    shutil.rmtree(tmp_path / "environment")  # more than a gigabyte


@pytest.mark.full
def test_a_wheel_made_from_the_sdist_is_the_wheel(archives, tmp_path):
    again = build_wheel(archives["sdist"], tmp_path)
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(archives["wheel"]) as other:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: other.read(name) for name in other.namelist()
        }


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_sdist_brings_its_tests_which_pass_without_the_repository(archives, tmp_path):
    """Without ../shared/data and git too: what reads them is skipped."""
    with tarfile.open(archives["sdist"]) as opened:
        opened.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not slow and not full"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "is not beside this checkout" in done.stdout
