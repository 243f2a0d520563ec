"""`make mutants`: break the code in forty known ways and report how many the tests detect.

Each mutant of mutants.toml is applied by itself to a scratch copy of the checkout, and its nearest
tests run. Mutants that they miss are then applied together, and the quick suite runs; a test that
fails there runs again with each of them alone. Every result is appended at once to
results/mutants.jsonl, so an interrupted run continues with the same command.
"""

import argparse
import hashlib
import json
import signal
import sys
import tempfile
import time
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

# Instead of a mutant's digest: the tests that passed the control run, and those that fail anyway.
PASSED, BROKEN = "control", "broken"

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


def detect_nearest(scratch: Scratch, mutant: Mutant) -> str | None:
    """Return the nearest test that fails because of a mutant; None if they miss it.

    A failure counts if the test fails a second time, alone.
    """
    unsteady: set[str] = set()
    while failed := scratch.failures([mutant], [*mutant.tests, *deselected(unsteady)]):
        if scratch.failures([mutant], [alone(failed[0])]):
            return failed[0]
        unsteady.update(failed)
    return None


def detect_together(
    scratch: Scratch, mutants: Sequence[Mutant], broken: set[str]
) -> dict[str, str]:
    """Return the test of the quick suite that detects a mutant, for each that is detected.

    The mutants are of different files. A test that fails with all of them counts if it passes
    without any, and fails with one alone; those that fail without any are added to `broken`.
    """
    found: dict[str, str] = {}
    tried: set[str] = set()
    while left := [mutant for mutant in mutants if mutant.name not in found]:
        failed = scratch.failures(left, [*QUICK, *deselected(broken | tried)], many=True)
        for test in failed:
            tried.add(test)
            if scratch.failures([], [alone(test)]):
                broken.add(test)
                continue
            for mutant in left:
                if mutant.name not in found and scratch.failures([mutant], [alone(test)]):
                    found[mutant.name] = test
        if len(failed) < FEW:  # all tests have run
            break
    return found


def alone(test: str) -> str:
    """Return a test to run by itself: with all parameters, whose names pytest may misread."""
    return test.partition("[")[0]


def deselected(tests: Iterable[str]) -> list[str]:
    """Return the options that exclude tests."""
    return [f"--deselect={test}" for test in sorted(tests)]


def control(scratch: Scratch, tests: Sequence[str]) -> None:
    """Run the nearest tests of mutants on the code as it is: they must pass."""
    print(f"control: {len(tests)} nearest tests or files, on the code as it is", flush=True)
    if not (found := scratch.imported()).is_relative_to(scratch.root):
        raise MutantError(f"the tests would import {found}, not the scratch copy.")
    passed: set[str] = set()  # in a second try, alone
    while failed := scratch.failures([], [*tests, *deselected(passed)], many=True):
        for test in failed:
            if scratch.failures([], [alone(test)]):
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

    def note(digest: str, tests: Iterable[str]) -> None:
        append(results, {"commit": commit, "digest": digest, "tests": sorted(tests)})

    with tempfile.TemporaryDirectory(prefix="unmask-mutants-", ignore_cleanup_errors=True) as place:
        scratch = Scratch(Path(place), workers)
        passed, broken = (set(known.get(key, {}).get("tests", [])) for key in (PASSED, BROKEN))
        if unknown := {test for mutant in left for test in mutant.tests} - passed:
            control(scratch, sorted(unknown))
            note(PASSED, passed | unknown)
        try:
            for result in judged(scratch, left, broken):
                known[result["digest"]] = result = {"commit": commit, **result}
                append(results, result)
                print(line_of(result), flush=True)
        finally:
            note(BROKEN, broken)
    return [known[mutant.digest] for mutant in mutants]


def judged(scratch: Scratch, mutants: Sequence[Mutant], broken: set[str]) -> Iterator[Result]:
    """Yield a result for each mutant: first of those that the nearest tests detect."""
    missed: list[tuple[Mutant, float]] = []  # and the seconds that it took so far
    for mutant in mutants:
        begun = time.monotonic()
        test = detect_nearest(scratch, mutant)
        seconds = time.monotonic() - begun
        if test:
            yield result_of(mutant, test, seconds)
        else:
            print(f"missed by the nearest tests: {mutant.name}", flush=True)
            missed.append((mutant, seconds))
    while missed:
        group = {mutant.file: (mutant, seconds) for mutant, seconds in reversed(missed)}
        missed = [entry for entry in missed if entry not in group.values()]
        begun = time.monotonic()
        found = detect_together(scratch, [mutant for mutant, _ in group.values()], broken)
        each = (time.monotonic() - begun) / len(group)
        for mutant, seconds in group.values():
            yield result_of(mutant, found.get(mutant.name), seconds + each)


def result_of(mutant: Mutant, test: str | None, seconds: float) -> Result:
    """Return the result of a mutant as it is stored."""
    about = {"digest": mutant.digest, "name": mutant.name}
    return {**about, "detected": bool(test), "test": test, "seconds": round(seconds, 1)}


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
    arguments = parser.parse_args(sys.argv[2:])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        _carry_out(arguments)
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
