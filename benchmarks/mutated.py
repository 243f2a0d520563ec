"""A list of mutants -> a scratch copy of the checkout, in which one of them is applied."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("mutants.toml")
LIMIT = 3 * 3600  # seconds for a run of pytest; single tests have limits of their own
FEW = 5  # failures to collect: on a busy machine, some may have nothing to do with a mutant


class MutantError(Exception):
    """A mutant that does not fit the sources, or tests that cannot judge it."""


@dataclass(frozen=True)
class Mutant:
    """One way to break the code."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    @property
    def digest(self) -> str:
        """Identify what is changed; another anchor is another mutant."""
        return hashlib.sha256("\0".join([self.file, self.old, self.new]).encode()).hexdigest()[:16]

    def path(self, root: Path) -> Path:
        """Return the file to change in a checkout."""
        return root / "src" / "unmask" / self.file

    def changed(self, root: Path) -> str:
        """Return the text of the mutated file, which must compile."""
        path = self.path(root)
        if not path.is_file():
            raise MutantError(
                f"mutant '{self.name}': src/unmask/{self.file} does not exist. Anchor the mutant "
                f"on the same behaviour where it is now ({LIST.name} has the rules)."
            )
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise MutantError(
                f"mutant '{self.name}': its anchor occurs {count} times in src/unmask/{self.file}; "
                f"expected one. Anchor it on the same behaviour ({LIST.name} has the rules)."
            )
        changed = text.replace(self.old, self.new)
        try:
            compile(changed, str(path), "exec")
        except SyntaxError as error:
            raise MutantError(f"mutant '{self.name}': does not compile: {error}") from None
        return changed


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """Read the list; names must differ."""
    mutants = [Mutant(**table) for table in tomllib.loads(path.read_text("utf-8"))["mutant"]]
    names = [mutant.name for mutant in mutants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MutantError(f"{path.name}: two mutants are called '{twice[0]}'. Rename one of them.")
    return mutants


class Scratch:
    """A copy of the checkout in which mutants are applied and tests run."""

    def __init__(self, place: Path, workers: int) -> None:
        self.place, self.workers, self.root = place, workers, place / "checkout"
        for name in git("ls-files", "-z", "-co", "--exclude-standard").split("\0"):
            if name and (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        if (data := ROOT.parent / "shared").is_dir():  # where the tests look for real data
            (place / "shared").symlink_to(data)
        self.environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        self.environment["OMP_NUM_THREADS"] = "1"  # as the tests set it when they run side by side
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # many short runs import the same

    @contextmanager
    def mutated(self, mutants: Sequence[Mutant]) -> Iterator[None]:
        """Apply mutants of different files while the block runs."""
        before: dict[Path, bytes] = {}
        try:
            for mutant in mutants:
                path, changed = mutant.path(self.root), mutant.changed(self.root)
                before[path] = path.read_bytes()
                self._write(path, changed.encode())
            yield
        finally:
            for path, contents in before.items():
                self._write(path, contents)

    def failures(
        self, mutants: Sequence[Mutant], arguments: Sequence[str], *, many: bool = False
    ) -> list[str]:
        """Run pytest up to the first failure, or up to a FEW of `many` tests; return the failed.

        Many tests run in several processes; for one or two, starting these would take longer.
        """
        cache, output = self.place / "cache", self.place / "output.txt"
        shutil.rmtree(cache, ignore_errors=True)
        processes, most = (self.workers, FEW) if many else (0, 1)
        command = [sys.executable, "-m", "pytest", "-q", f"-n{processes}", f"--maxfail={most}"]
        command += ["-o", f"cache_dir={cache}", f"--basetemp={self.place / 'tmp'}", *arguments]
        with self.mutated(mutants), output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                names = "; ".join(mutant.name for mutant in mutants) or "no mutant"
                raise MutantError(
                    f"with {names}: the tests still ran after {LIMIT} s; a mutant must not make "
                    "them hang. Run it again on a quiet machine."
                ) from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if code in (0, pytest.ExitCode.NO_TESTS_COLLECTED):  # all may have been deselected
            return []
        failed = cache / "v" / "cache" / "lastfailed"
        if not failed.is_file():
            tail = output.read_text("utf-8", "replace")[-3000:]
            raise MutantError(f"pytest ended with {code} and no failed test:\n{tail}")
        return list(json.loads(failed.read_text("utf-8")))

    def imported(self) -> Path:
        """Return where the tests find the package."""
        command = [sys.executable, "-c", "import unmask; print(unmask.__file__)"]
        how = {"env": self.environment, "cwd": self.root, "text": True}
        return Path(subprocess.check_output(command, **how).strip())

    def skipped(self) -> list[str]:
        """Return the lines of the last run that report skipped tests."""
        lines = (self.place / "output.txt").read_text("utf-8", "replace").splitlines()
        return [line for line in lines if line.startswith("SKIPPED")]

    def _write(self, path: Path, contents: bytes) -> None:
        """Write a source file and delete its bytecode.

        Python would take old bytecode for current if size and time (in seconds) are equal.
        """
        path.write_bytes(contents)
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()


def git(*arguments: str) -> str:
    """Run git in the checkout and return what it prints."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MutantError(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}. Use a git checkout."
        )
    return done.stdout
