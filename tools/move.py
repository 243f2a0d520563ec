"""Move modules to other packages, and rewrite every import, dotted name and path that names them.

    python tools/move.py tools/moves.toml SECTION [SECTION ...]

A section of the table has lines `"old.module" = "new.module"`, below the package `unmask`. The
script moves the files with git, splits `from package import module` where modules part ways, and
renames a module in the code that uses it under its own name. It rewrites the same names in strings,
comments, documentation and tables of paths. Ruff sorts and wraps the result.
"""

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
ENDINGS = {".py", ".md", ".toml", ".js", ".json", ".html"}
SKIPPED = (
    "tests/golden/folders/",
    "tools/",
    "CHANGELOG.md",
    "docs/log.md",
    "tests/test_leaving.py",
    "pyproject.toml",
    "benchmarks/first_version.json",
    "benchmarks/mutants_first_version.json",
)
PACKAGE = "unmask"
Moves = Mapping[str, str]


def path_of(module: str) -> Path:
    """The file of a module, or the `__init__.py` of a package."""
    place = SOURCE / Path(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def tracked() -> list[Path]:
    """The text files that git tracks and that may mention a module."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    names = [name for name in listed.stdout.splitlines() if not name.startswith(SKIPPED)]
    return [ROOT / n for n in names if Path(n).suffix in ENDINGS and (ROOT / n).is_file()]


def move_files(moves: Moves, packages: Mapping[str, str]) -> None:
    """Move the files; new packages get an `__init__.py` with their docstring."""
    for old, new in moves.items():
        source = path_of(old)
        if not source.exists():  # moved before
            continue
        whole = source.name == "__init__.py"
        target = SOURCE / Path(*new.split("."))
        target = target / "__init__.py" if whole else target.with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        git("mv", source, target)
    for package, docstring in packages.items():
        place = SOURCE / Path(*package.split("."))
        if place.is_dir() and not (place / "__init__.py").exists():
            (place / "__init__.py").write_text(f'"""{docstring}"""\n', encoding="utf-8")
            git("add", place / "__init__.py")


def git(*words: object) -> None:
    """Run git in the checkout."""
    subprocess.run(["git", *map(str, words)], cwd=ROOT, check=True)


class Imports:
    """The import statements of one file, rewritten."""

    def __init__(self, text: str, moves: Moves) -> None:
        self.text, self.moves = text, moves
        self.tree = ast.parse(text)
        self.taken = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)}
        self.taken |= {n.arg for n in ast.walk(self.tree) if isinstance(n, ast.arg)}
        self.renamed: dict[str, str] = {}

    def rewritten(self) -> str:
        """The text of the file with all imports and uses of renamed modules changed."""
        lines = self.text.splitlines(keepends=True)
        edits: list[tuple[int, int, int, int, str]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (new := self._statement(node)):
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                where = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
                edits.append((*where, new))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id in self.renamed:
                line, column = node.lineno, node.col_offset
                edits.append((line, column, line, column + len(node.id), self.renamed[node.id]))
        for line, column, last, end, new in sorted(edits, reverse=True):
            head = lines[line - 1].encode()[:column].decode()
            tail = lines[last - 1].encode()[end:].decode()
            lines[line - 1 : last] = [head + new + tail]
        return "".join(lines)

    def _statement(self, node: ast.ImportFrom) -> str | None:
        module = node.module or ""
        home = self.moves.get(module, module)
        parted = [alias for alias in node.names if f"{module}.{alias.name}" in self.moves]
        if home == module and not parted:
            return None
        statements = [self._parted(module, alias) for alias in parted]
        if left := [ast.unparse(alias) for alias in node.names if alias not in parted]:
            statements.append(f"from {home} import {', '.join(left)}")
        return ("\n" + " " * node.col_offset).join(statements)

    def _parted(self, module: str, alias: ast.alias) -> str:
        package, _, base = self.moves[f"{module}.{alias.name}"].rpartition(".")
        if alias.asname or base == alias.name:
            rest = f" as {alias.asname}" if alias.asname else ""
            return f"from {package} import {base}{rest}"
        if base in self.taken:
            return f"from {package} import {base} as {alias.name}"
        self.renamed[alias.name] = base
        return f"from {package} import {base}"


def renamer(moves: Moves) -> Callable[[str], str]:
    """What replaces dotted names and paths of files in any text.

    New names stand in the pattern too, before the old ones that they begin with: they stay.
    """
    table = {**{new: new for new in moves.values()}, **moves}
    table |= {as_path(old): as_path(new) for old, new in table.items()}
    names = sorted(table, key=len, reverse=True)
    dotted = "|".join(re.escape(name) for name in names if "/" not in name)
    paths = "|".join(re.escape(name) for name in names if "/" in name)
    pattern = re.compile(rf"(?<![\w./])({dotted})(?![\w/])|(?<![\w.])({paths})(?!\w)")
    return lambda text: pattern.sub(lambda match: table[match[0]], text)


def as_path(module: str) -> str:
    """The path of a module below the package, such as text/files.py."""
    return module.partition(".")[2].replace(".", "/") + ".py"


def rewrite(paths: Iterable[Path], moves: Moves) -> None:
    """Rewrite all files that mention a module."""
    renamed = renamer(moves)
    for path in paths:
        before = path.read_text("utf-8")
        text = Imports(before, moves).rewritten() if path.suffix == ".py" else before
        if (text := renamed(text)) != before:
            path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("sections", nargs="+")
    given = parser.parse_args()
    table = tomllib.loads(given.table.read_text("utf-8"))
    moves = {
        f"{PACKAGE}.{old}": f"{PACKAGE}.{new}"
        for section in given.sections
        for old, new in table[section].items()
    }
    move_files(moves, {f"{PACKAGE}.{name}": text for name, text in table["packages"].items()})
    rewrite(tracked(), moves)
    for words in (["check", "--fix", "-q", "--select", "I", "."], ["format", "-q", "."]):
        subprocess.run([Path(sys.executable).with_name("ruff"), *words], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
