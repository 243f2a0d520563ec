"""The mutants of `make mutants` fit the sources, and its runner can tell a detected one."""

import json
from dataclasses import replace

import pytest

from benchmarks import mutants as runner
from benchmarks.mutated import FEW, ROOT, Mutant, MutantError, Scratch, read_mutants

MUTANTS = read_mutants()


def test_there_are_forty():
    assert len(MUTANTS) == 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_at_one_place_and_the_file_still_compiles(mutant):
    assert mutant.changed(ROOT) != mutant.path(ROOT).read_text()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_nearest_tests_of_a_mutant_exist(mutant):
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).is_file()


def test_every_mutant_of_the_first_version_is_still_there():
    assert not runner.check(MUTANTS)
    assert set(runner.read_baseline()) <= {mutant.name for mutant in MUTANTS}


@pytest.fixture
def source(tmp_path):
    """A checkout of one file."""
    (tmp_path / "src" / "unmask").mkdir(parents=True)
    path = tmp_path / "src" / "unmask" / "one.py"
    path.write_text("x = 1\ny = 1\n")
    return path


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("z", "", "occurs 0 times"),
        ("1", "2", "occurs 2 times"),
        ("x = 1", "x = ", "does not compile"),
    ],
)
def test_a_mutant_that_does_not_fit_is_named(source, tmp_path, old, new, problem):
    mutant = Mutant("x is 2", "one.py", old, new, [])
    with pytest.raises(MutantError, match=f"'x is 2'.*{problem}"):
        mutant.changed(tmp_path)


def test_a_mutant_of_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(MutantError, match="'x is 2'.*gone.py does not exist"):
        Mutant("x is 2", "gone.py", "1", "2", []).changed(tmp_path)


@pytest.mark.slow
def test_a_scratch_copy_names_the_failed_test_and_is_as_before_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.mutated.git", lambda *arguments: "pyproject.toml")
    scratch = Scratch(tmp_path, 0)
    (scratch.root / "src" / "unmask").mkdir(parents=True)
    (scratch.root / "src" / "unmask" / "__init__.py").write_text("x = 1\n")
    (scratch.root / "test_one.py").write_text(
        "from unmask import x\ndef test_blind(): pass\ndef test_value(): assert x == 1\n"
    )
    mutant = Mutant("x is 2", "__init__.py", "x = 1", "x = 2", [])
    assert scratch.failures([mutant], ["test_one.py"]) == ["test_one.py::test_value"]
    assert scratch.failures([], ["test_one.py"]) == []
    with pytest.raises(MutantError, match="no failed test"):
        scratch.failures([], ["test_none.py"])


class Suite:
    """Stands for a scratch copy: which tests fail because of a mutant, and which anyway."""

    def __init__(self, because, anyway=()):
        self.because = because if isinstance(because, dict) else {"x is 2": because}
        self.anyway = list(anyway)
        self.asked = []

    def failures(self, mutants, arguments, *, many=False):
        self.asked.append(list(arguments))
        out = {a.removeprefix("--deselect=") for a in arguments if a.startswith("--deselect=")}
        chosen = {a for a in arguments if not a.startswith("-")} - {runner.QUICK[1]}
        failing = self.anyway + [t for m in mutants for t in self.because.get(m.name, [])]
        found = [t for t in failing if t not in out and (not chosen or t in chosen)]
        return found[: FEW if many else 1]


MUTANT = Mutant("x is 2", "one.py", "x = 1", "x = 2", ["near"])
OTHER = replace(MUTANT, name="y is 2", file="two.py")


def verdicts(suite, *mutants):
    found = list(runner.judged(suite, mutants or [MUTANT], set()))
    assert all(result["detected"] == (result["test"] is not None) for result in found)
    return {result["name"]: result["test"] for result in found}


def test_nothing_else_runs_where_a_nearest_test_fails_twice():
    suite = Suite(["near", "far"])
    assert verdicts(suite) == {"x is 2": "near"}
    assert suite.asked == [["near"], ["near"]]


def test_a_mutant_that_the_nearest_tests_miss_is_detected_by_the_quick_suite():
    suite = Suite(["far"])
    assert verdicts(suite) == {"x is 2": "far"}
    assert [runner.QUICK[1] in arguments for arguments in suite.asked] == [
        False,
        True,
        False,
        False,
    ]


def test_mutants_that_the_nearest_tests_detect_come_first():
    found = verdicts(Suite({"x is 2": ["far"], "y is 2": ["near"]}), MUTANT, OTHER)
    assert list(found) == ["y is 2", "x is 2"]


@pytest.mark.parametrize("file", ["one.py", "two.py"])
def test_what_the_quick_suite_detects_is_told_for_each_mutant_alone(file):
    third = replace(MUTANT, name="z is 2", file=file)
    suite = Suite({"x is 2": ["far"], "y is 2": ["farther"]})
    found = verdicts(suite, MUTANT, OTHER, third)
    assert found == {"x is 2": "far", "y is 2": "farther", "z is 2": None}


def test_a_test_that_also_fails_without_a_mutant_detects_nothing():
    broken = set()
    assert runner.detect_together(Suite([], ["far"]), [MUTANT], broken) == {}
    assert broken == {"far"}


def test_tests_that_fail_anyway_do_not_hide_one_that_detects():
    anyway = [f"broken {number}" for number in range(2 * FEW)]
    assert verdicts(Suite(["far"], anyway)) == {"x is 2": "far"}


def once(suite):
    """Let what fails fail once, and pass from then on."""
    plain = suite.failures

    def failures(mutants, arguments, **how):
        found = plain(mutants, arguments, **how)
        suite.because, suite.anyway = {}, []
        return found

    suite.failures = failures
    return suite


def test_a_test_that_fails_only_once_detects_nothing():
    assert verdicts(once(Suite(["near"]))) == {"x is 2": None}


@pytest.mark.parametrize("again", [True, False])
def test_a_control_run_fails_where_a_test_fails_twice(tmp_path, again):
    suite = Suite([], ["near"]) if again else once(Suite([], ["near"]))
    suite.root, suite.imported, suite.skipped = tmp_path, lambda: tmp_path / "unmask", list
    if again:
        with pytest.raises(MutantError, match="near fails on the code as it is"):
            runner.control(suite, MUTANT.tests)
    else:
        runner.control(suite, MUTANT.tests)


def test_a_run_goes_on_after_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "results" / "mutants.jsonl"
    runner.append(path, {"commit": "a", "digest": "1"})
    path.write_text(path.read_text() + '{"commit": "a", "dig')
    runner.append(path, {"commit": "a", "digest": "2"})
    runner.append(path, {"commit": "b", "digest": "3"})
    assert list(runner.read_results(path, "a")) == ["1", "2"]


def test_a_mutant_that_was_detected_once_must_stay_detected(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "BASELINE", tmp_path / "before.json")
    before = {"mutants": [{"name": n, "detected": n != "c"} for n in "abc"]}
    (tmp_path / "before.json").write_text(json.dumps(before))
    now = [{"name": n, "detected": n == "a", "test": None, "seconds": 1.0} for n in "abc"]
    with pytest.raises(SystemExit, match="no longer: b$"):
        runner.summarize(now)
    assert "1 of 3 mutants detected (33.3%)" in capsys.readouterr().out
