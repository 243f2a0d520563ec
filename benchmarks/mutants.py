"""`make mutants`: break the code in forty known ways and report how many the tests detect.

Each mutant of mutants.toml is applied by itself to a scratch copy of the checkout. The nearest
tests of all mutants run first; then, for those that they miss, the rest of the quick suite. Every
result is appended at once to results/mutants.jsonl, so an interrupted run continues with the same
command.
"""

import argparse
import hashlib
import json
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.mutated import FEW, LIST, ROOT, Mutant, MutantError, Scratch, git, read_mutants

BASELINE = Path(__file__).with_name("mutants_first_version.json")
RESULTS = Path("results") / "mutants.jsonl"
QUICK = ["-m", "not slow and not full"]
# These tests are about how the sources look, not about what they do.
QUICK += ["--ignore=tests/test_architecture.py", "--ignore=tests/test_mutants.py"]
# What a result depends on; a commit that changes nothing of it keeps the results.
CODE = ["src", "tests", "recipes", "benchmarks", "pyproject.toml", "constraints.txt"]
CODE += [":!benchmarks/muta*", ":!tests/test_mutants.py"]  # this tool

Result = dict[str, Any]  # commit, digest, name, detected, test, seconds


def check(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """Return what is wrong with the list: one line for each mutant that does not apply."""
    problems = []
    for mutant in mutants:
        try:
            mutant.changed(root)
        except MutantError as error:
            problems.append(str(error))
    names = {mutant.name for mutant in mutants}
    for name in read_baseline():
        if name not in names:
            problems.append(f"mutant '{name}' is in {BASELINE.name} but no longer in {LIST.name}.")
    return problems


def detect(scratch: Scratch, mutant: Mutant, broken: set[str], *, nearest: bool) -> str | None:
    """Return the first test that fails because of a mutant; None if the tests miss it.

    Either the nearest tests run, or the rest of the quick suite. A failure counts if the test fails
    a second time, alone. A test outside the control run must also pass alone without the mutant;
    those that do not are added to `broken`.
    """
    unsteady: set[str] = set()
    tests = mutant.tests if nearest else [*QUICK, *deselected(mutant.tests)]
    while True:
        chosen = [*tests, *deselected(broken | unsteady)]
        failed = scratch.failures(mutant, chosen, many=not nearest)
        for test in failed:
            if not nearest and scratch.failures(None, [alone(test)]):
                broken.add(test)
            elif scratch.failures(mutant, [alone(test)]):
                return test
            else:
                unsteady.add(test)
        if not failed or (not nearest and len(failed) < FEW):
            return None  # all tests have run


def alone(test: str) -> str:
    """Return a test to run by itself: with all parameters, whose names pytest may misread."""
    return test.partition("[")[0]


def deselected(tests: Iterable[str]) -> list[str]:
    """Return the options that leave tests out."""
    return [f"--deselect={test}" for test in sorted(tests)]


def control(scratch: Scratch, tests: Sequence[str]) -> None:
    """Run the nearest tests of all mutants on the code as it is: they must pass."""
    print("control: the nearest tests of all mutants, on the code as it is", flush=True)
    if not (found := scratch.imported()).is_relative_to(scratch.root):
        raise MutantError(f"the tests would import {found}, not the scratch copy.")
    passed: set[str] = set()  # in a second try, alone
    while failed := scratch.failures(None, [*tests, *deselected(passed)], many=True):
        for test in failed:
            if scratch.failures(None, [alone(test)]):
                raise MutantError(
                    f"{test} fails on the code as it is; a mutant can only be judged by tests "
                    "that pass. Fix it first, or run it again if the machine was busy."
                )
        passed |= set(failed)
    for line in scratch.skipped():
        print(f"warning: cannot detect anything here: {line}", flush=True)


def run(mutants: Sequence[Mutant], workers: int, results: Path) -> list[Result]:
    """Judge every mutant that has no result for this code yet; return the results of all."""
    commit = code_version()
    known = read_results(results, commit)
    left = [mutant for mutant in mutants if mutant.digest not in known]
    if left:
        with tempfile.TemporaryDirectory(
            prefix="unmask-mutants-", ignore_cleanup_errors=True
        ) as place:
            scratch = Scratch(Path(place), workers)
            tests = sorted({test for mutant in mutants for test in mutant.tests})
            about = hashlib.sha256("\n".join(tests).encode()).hexdigest()[:16]
            if about not in known:
                control(scratch, tests)
                append(results, {"commit": commit, "digest": about, "name": "control"})
            for result in judged(scratch, left):
                known[result["digest"]] = result = {"commit": commit, **result}
                append(results, result)
                print(line_of(result), flush=True)
    return [known[mutant.digest] for mutant in mutants]


def judged(scratch: Scratch, mutants: Sequence[Mutant]) -> Iterator[Result]:
    """Yield a result for each mutant: first of those that the nearest tests detect."""
    broken: set[str] = set()
    seconds: dict[str, float] = defaultdict(float)
    missed = list(mutants)
    for nearest in (True, False):
        for mutant in list(missed):
            begun = time.monotonic()
            test = detect(scratch, mutant, broken, nearest=nearest)
            seconds[mutant.name] += time.monotonic() - begun
            if test or not nearest:
                missed.remove(mutant)
                yield {
                    "digest": mutant.digest,
                    "name": mutant.name,
                    "detected": test is not None,
                    "test": test,
                    "seconds": round(seconds[mutant.name], 1),
                }


def code_version() -> str:
    """Return the last commit that changed the code, and a digest of what was changed since."""
    commit = git("log", "-1", "--format=%H", "--", *CODE).strip()
    if not git("status", "--porcelain", "--", *CODE):
        return commit
    digest = hashlib.sha256(git("diff", "HEAD", "--", *CODE).encode())
    for name in git("ls-files", "-z", "-o", "--exclude-standard", "--", *CODE).split("\0"):
        if name:
            digest.update(name.encode() + (ROOT / name).read_bytes())
    return f"{commit}+{digest.hexdigest()[:12]}"


def read_results(path: Path, commit: str) -> dict[str, Result]:
    """Return the results for a version of the code, by the digest of the mutant."""
    found = {}
    for line in path.read_text("utf-8").split("\n") if path.exists() else []:
        with suppress(json.JSONDecodeError):  # a line that an interrupted run cut off
            entry = json.loads(line)
            if entry["commit"] == commit:
                found[entry["digest"]] = entry
    return found


def append(path: Path, entry: Result) -> None:
    """Add a result on a line of its own, also after a line that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * cut_off + json.dumps(entry, ensure_ascii=False) + "\n")


def read_baseline() -> dict[str, bool]:
    """Return which mutants the first version detected, by name; nothing if it is not there."""
    if not BASELINE.exists():
        return {}
    found = json.loads(BASELINE.read_text("utf-8"))["mutants"]
    return {entry["name"]: entry["detected"] for entry in found}


def write_report(path: Path, mutants: Sequence[Mutant], results: Sequence[Result]) -> None:
    """Write a summary to compare later runs with."""
    entries = [{key: result[key] for key in ("name", "detected", "test")} for result in results]
    judged = {entry["name"] for entry in entries}
    summary = {
        "commit": code_version(),
        "detected": sum(entry["detected"] for entry in entries),
        "judged": len(entries),
        "undecided": [mutant.name for mutant in mutants if mutant.name not in judged],
        "mutants": entries,
    }
    path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {path}")


def line_of(result: Result) -> str:
    """Return a line of the table."""
    verdict = "detected" if result["detected"] else "SURVIVED"
    return f"{verdict}  {result['seconds']:7.1f} s  {result['name']}  <- {result['test'] or '-'}"


def summarize(results: Sequence[Result]) -> None:
    """Print the table and the share; fail if a mutant survives that was once detected."""
    print()
    for result in results:
        print(line_of(result))
    if results:
        detected = sum(result["detected"] for result in results)
        print(f"{detected} of {len(results)} mutants detected ({detected / len(results):.1%})")
    before = read_baseline()
    lost = [r["name"] for r in results if before.get(r["name"]) and not r["detected"]]
    if lost:
        raise SystemExit(f"detected in {BASELINE.name} and no longer: {'; '.join(lost)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="only mutants whose name contains this")
    parser.add_argument("--list", action="store_true", help="list the mutants and stop")
    parser.add_argument("--check", action="store_true", help="check that all apply and stop")
    parser.add_argument(
        "--workers", type=int, default=2, help="processes for many tests (default: 2)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"(default: {RESULTS})")
    parser.add_argument(
        "--report",
        type=Path,
        nargs="?",
        const=BASELINE,
        help=f"write the results so far to this file (default: {BASELINE.name}); runs nothing",
    )
    given = parser.parse_args(sys.argv[2:])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        _carry_out(given)
    except MutantError as error:
        raise SystemExit(f"error: {error}") from None


def _carry_out(given: argparse.Namespace) -> None:
    mutants = read_mutants()
    if given.only:
        mutants = [mutant for mutant in mutants if given.only.lower() in mutant.name.lower()]
        if not mutants:
            raise MutantError(f"--only {given.only}: no mutant has that in its name; see --list.")
    if given.list:
        for mutant in mutants:
            print(f"{mutant.file:<28} {mutant.name}")
        return
    if problems := check(read_mutants()):
        raise MutantError("\n".join(problems))
    if given.check:
        print(f"all {len(mutants)} mutants apply")
        return
    if given.report:
        known = read_results(given.results, code_version())
        found = [known[mutant.digest] for mutant in mutants if mutant.digest in known]
        write_report(given.report, mutants, found)
        return
    summarize(run(mutants, given.workers, given.results))
