"""Size of the package: lines of code per subpackage, and the share of expressions typed as Any.

A line of code is a line of a Python file that is not blank, does not start with `#` and is not part
of a docstring. The size is printed beside that of the first version, from first_version.json.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
FIRST = Path(__file__).with_name("first_version.json")
TOTAL = "total"


def code_lines(text: str) -> int:
    """Count the lines of a file that are neither blank nor comments nor docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            documented.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    lines = enumerate((line.strip() for line in text.splitlines()), start=1)
    return sum(
        bool(line) and not line.startswith("#") and number not in documented
        for number, line in lines
    )


def lines_by_package() -> dict[str, int]:
    """Count the lines of code of each subpackage, and of the files beside them as `unmask`."""
    source = ROOT / "src"
    counts: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        counts[package_of(module.removesuffix(".__init__"))] += code_lines(path.read_text())
    return with_total(counts)


def package_of(module: str) -> str:
    """Name the subpackage of a module: unmask.train.loop -> unmask.train."""
    package = ".".join(module.split(".")[:2])
    return package if (ROOT / "src" / package.replace(".", "/")).is_dir() else "unmask"


def any_by_package() -> dict[str, dict[str, int]]:
    """Count the expressions of each subpackage, and those of them that mypy types as Any."""
    with TemporaryDirectory() as place:
        command = [sys.executable, "-m", "mypy", "--any-exprs-report", place]
        done = subprocess.run(
            [*command, "--cache-dir", os.devnull],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        report = Path(place, "any-exprs.txt")
        if not report.exists():
            raise SystemExit(f"mypy wrote no report: {done.stdout}{done.stderr}")
        return read_report(report.read_text())


def read_report(text: str) -> dict[str, dict[str, int]]:
    """Read mypy's table: name, expressions that are Any, expressions, coverage."""
    anys: Counter[str] = Counter()
    expressions: Counter[str] = Counter()
    for line in text.splitlines():
        name, *numbers = line.split() or [""]
        if name.partition(".")[0] == "unmask":
            anys[package_of(name)] += int(numbers[0])
            expressions[package_of(name)] += int(numbers[1])
    found, every = with_total(anys), with_total(expressions)
    return {name: {"any": found[name], "expressions": every[name]} for name in every}


def with_total(counts: Counter[str]) -> dict[str, int]:
    return {**dict(sorted(counts.items())), TOTAL: counts.total()}


def show(now: dict[str, Any], first: dict[str, Any]) -> None:
    """Print a table with a row for each subpackage of this version or of the first."""
    before, lines = first["lines"], now["lines"]
    names = sorted((before.keys() | lines.keys()) - {TOTAL})
    print("| package | lines of code | first version | change |")
    print("|---|---|---|---|")
    for name in [*names, TOTAL]:
        old, new = before.get(name, 0), lines.get(name, 0)
        print(f"| {name} | {new:,} | {old:,} | {new - old:+,} |")
    if "any" not in now:
        return
    print("\n| package | expressions of type Any | first version |")
    print("|---|---|---|")
    names = sorted((first["any"].keys() | now["any"].keys()) - {TOTAL})
    for name in [*names, TOTAL]:
        print(f"| {name} | {share(now['any'].get(name))} | {share(first['any'].get(name))} |")


def share(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "none"
    part = counts["any"] / max(counts["expressions"], 1)
    return f"{part:.2%} ({counts['any']:,} of {counts['expressions']:,})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks codelines")
    parser.add_argument(
        "--any", action="store_true", help="also the share of expressions of type Any (a minute)"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args(sys.argv[2:])
    now: dict[str, Any] = {"lines": lines_by_package()}
    if arguments.any:
        now["any"] = any_by_package()
    if arguments.json:
        arguments.json.write_text(json.dumps(now, indent=2) + "\n")
    show(now, json.loads(FIRST.read_text()))
