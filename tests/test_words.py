"""The word list of `make lint`: what it finds, where it looks, and what it leaves alone."""

import subprocess
import sys

import pytest
from tools.words import EXEMPT, FILES, PHRASES, ROOT, find

BAD = "Wrong number. Mend it."


def findings(path, text):
    path.write_text(text)
    return [(finding.line, finding.phrase) for finding in find(path, path.name)]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("docstring.py", f'"""Read.\n\n{BAD}\n"""\n', 3),
        ("comment.py", f"x = 1\ny = 2  # {BAD}\n", 2),
        ("error.py", f'raise ValueError("{BAD}")\n', 1),
        ("bytes.py", f"x = b'{BAD}'\n", 1),
        ("help.py", f'def verb(\n    x: Annotated[int, Option(help="{BAD}")],\n): ...\n', 2),
        ("formatted.py", f'x = f"{{name}}: {BAD}"\n', 1),
        ("formatted_lines.py", f'x = f"""{{name}}:\n{BAD} {{name}}"""\n', 2),
        ("page.md", f"# Title\n\n{BAD}\n", 3),
        ("page.html", f"<p>\n{BAD}</p>\n", 2),
        ("page.js", f"// a\nconst text = `{BAD}`;\n", 2),
        ("recipe.toml", f"x = 1\n# {BAD}\n", 2),
        ("Makefile", f"help:  ## {BAD}\n", 1),
    ],
)
def test_a_bad_phrase_is_found_wherever_a_person_reads_it(name, text, line, tmp_path):
    assert findings(tmp_path / name, text) == [(line, "Mend")]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("page.md", "The step is\nleft\nout.\n", 2),
        ("recipe.toml", "# The step is left\n# out.\n", 1),
        ("page.js", "// The step is left\n// out.\n", 1),
        ("comment.py", "# The step\n# is left\n# out.\n", 2),
        ("string.py", 'x = (\n    "the step is "\n    f"left "\n    "out"\n)\n', 3),
        ("docstring.py", '"""The step is left\nout."""\n', 1),
    ],
)
def test_a_phrase_is_found_over_the_end_of_a_line(name, text, line, tmp_path):
    assert findings(tmp_path / name, text) == [(line, "left out")]


@pytest.mark.parametrize(
    "text",
    [
        "mend = left_out = None\n",  # names of code are not searched
        'x = "left", "out"\n',  # two strings
        'x = "left"\n"out"\n',  # two statements
        "x = 1  # left\ny = 2  # out\n",  # comments of two lines
        "# left\n'out'\n",  # a comment and a string
    ],
)
def test_code_is_not_text_and_different_texts_are_not_joined(text, tmp_path):
    assert findings(tmp_path / "code.py", text) == []


@pytest.mark.parametrize(
    "text",
    [
        "Amendments are recommended.",
        "Ask a reader who wants to know.",
        "It stops when it is told to.",
        "Equal scores are told apart by position.",
        "Nobody else can read them.",
        "So many that they do not fit.",
        "The preprocessor needs extra memory and an extra pass.",
        "A hidden state, and the masked tokens.",
        "Anchor it anew and move on.",
        "The learning rate goes on falling.",
        "Mute the sound.",
    ],
)
def test_good_english_is_left_alone(text, tmp_path):
    assert findings(tmp_path / "page.md", text) == []


@pytest.mark.parametrize(
    "text",
    [
        "The step is said to fail.",
        "Every skipped step is told.",
        "The command says so.",
        "Begin it anew.",
        "Begin again with a lower one.",
        "It goes on with the old run.",
        "Going on from step 3",
        "A wish to stop",
        "nobody answers.",
        "trained from nothing",
        "It returns nothing. Who wants them listens.",
        "learned by heart",
        "At most so many tokens.",
        "The hidden words are replaced.",
        "Fast on a processor",
        "muting each head",
        "the same on Ray, an extra",
    ],
)
def test_phrases_of_the_first_version_are_found(text, tmp_path):
    assert len(findings(tmp_path / "page.md", text)) == 1


def test_every_finding_is_a_line_and_makes_the_command_fail(tmp_path):
    (tmp_path / "bad.md").write_text("One.\n\nLearned by heart, then left out.\n")
    (tmp_path / "good.md").write_text("One.\n")

    def run(*names):
        command = [sys.executable, "-S", ROOT / "tools" / "words.py"]
        command += [tmp_path / name for name in names]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    bad = run("good.md", "bad.md")
    assert bad.returncode == 1
    assert bad.stdout.splitlines() == [
        f'{tmp_path}/bad.md:3: "by heart" -> {PHRASES["by heart"]}',
        f'{tmp_path}/bad.md:3: "left out" -> {PHRASES["left out"]}',
    ]
    good = run("good.md")
    assert (good.returncode, good.stdout) == (0, "")


def test_lint_runs_the_list_on_every_kind_of_file():
    assert "tools/words.py\n" in (ROOT / "Makefile").read_text().partition("\nlint:")[2]
    searched = {path.relative_to(ROOT).as_posix() for glob in FILES for path in ROOT.glob(glob)}
    assert {
        "README.md",
        "docs/use.md",
        "Makefile",
        "pyproject.toml",
        "recipes/bert.toml",
        "recipes/finetune/classify.toml",
        "src/unmask/__init__.py",
        "src/unmask/train/loop.py",
        "src/unmask/page/index.html",
        "src/unmask/page/app.js",
        "benchmarks/faults/main.py",
        "tests/train/test_loop.py",
        "tools/words.py",
    } <= searched
    assert EXEMPT.keys() <= searched
