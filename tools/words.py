"""Find phrases of the project's first version that a reader has to translate; `make lint` runs it.

    python tools/words.py [FILE ...]

Each finding is one line: file:line, the phrase, and what to write instead. In Python files,
comments and strings are searched, in all others the whole text. A phrase is found also where it is
wrapped, or where a string is continued on the next line. Needs no package but Python's own.
"""

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FILES = (
    "*.md",
    "docs/*.md",
    "Makefile",
    "pyproject.toml",
    "recipes/**/*.toml",
    "src/**/*.py",
    "src/**/*.html",
    "src/**/*.js",
    "benchmarks/**/*.py",
    "benchmarks/**/*.toml",
    "tests/**/*.py",
    "tools/*.py",
)
# Regular expression -> what to write instead. Only what is never good English here belongs here:
# "rate", "row", "word" or "nobody" alone have good uses. A space stands for any white space.
PHRASES = {
    r"mend(?:s|ed|ing)?": "fix, or say what to do",
    r"(?:is|are|was|were|be|been|being) said": "is printed, is logged, warns, reports",
    r"(?:is|are|was|were|be|been|being) told(?! to| apart)": "is printed, is logged, is passed",
    r"(?:say|says|said) so": "reports it, prints a warning",
    r"(?:is|are) heard": "is reported, is received",
    r"beg[iau]n(?:s|ning)?(?: it| them)? (?:anew|again)": "start over",
    r"go(?:es|ing|ne)? on (?:with|from|where|behind)|went on with": "resume, continue",
    r"(?:take|takes|took|taken) up again": "resume",
    r"left out": "skipped, omitted, not given",
    r"wish(?:es)? to stop|stop wish(?:es)?": "stop request",
    r"nobody answers|has nobody to": "say what is not running, or what is missing",
    r"from nothing": "from scratch",
    r"(?:(?<=[.:;]\s)|^)who (?:wants|gives|needs|reads|trains|learns|asks)": "name the person",
    r"whoever": "name the person or the part of the program",
    r"by heart": "memorised, overfitted",
    r"(?:at most|among|of|for|with|over|when|after|take|from) so many": "N, a number of",
    r"hidden (?:tokens?|words?|places?)": "masked tokens",
    r"guess(?:es|ed|ing)? (?:masked|the masked|tokens?|words?)": "predict",
    r"pairs right": "next-sentence accuracy",
    r"(?:an?|one|two|the|each|every|this) processors?": "CPU",
    r"mut(?:e|es|ed|ing) (?:a |the |one |single |each |some )?heads?": "ablate heads",
    r"habits? of (?:a |the |all )?heads?": "head statistics",
    r"truth heard|hears? the truth": "teacher forcing",
    r"turned round": "reversed",
    r"trainees?": "training module",
    r"departures?": "differences from BERT",
    r"(?:an|the) extra(?=[.,;:)\n]|$)": "optional dependency: pip install 'unmask[NAME]'",
    r"faults? of ours|tell us": "internal error; please report this",
}
# Texts that are data, and what is quoted from them.
EXEMPT = {
    "tools/words.py": tuple(PHRASES),
    "tests/test_words.py": tuple(PHRASES),
    "tests/train/test_run_folder.py": (r"hidden (?:tokens?|words?|places?)",),
    "tests/data/read/test_docstrings.py": (r"left out",),
    "tests/text/test_sentences.py": (r"(?:say|says|said) so",),
}
SPACE = r"(?:\s|#|//)+"  # with the signs that begin a comment on the next line
# Tokens of Python with text: from version 3.12 on, an f-string is several of them.
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
BETWEEN = {getattr(tokenize, name, tokenize.NL) for name in ("NL", "FSTRING_START", "FSTRING_END")}


class Finding(NamedTuple):
    """A phrase in a file, and what to write instead."""

    line: int
    phrase: str
    instead: str


class Part(NamedTuple):
    """A comment or a string, and the line that it begins in."""

    line: int
    text: str


def texts_of_python(source: str) -> Iterator[list[Part]]:
    """Yield the comments and strings of Python code.

    Comments on lines of their own and strings that stand next to each other are one text.
    """
    parts: list[Part] = []
    in_comment = False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in BETWEEN:
            continue
        is_comment, text = token.type == tokenize.COMMENT, token.string
        is_text = is_comment or token.type in STRINGS
        if parts and (not is_text or is_comment != in_comment):
            yield parts
            parts = []
        if is_text:
            in_comment = is_comment
            if is_comment:
                text = text.lstrip("#") + "\n"
            elif token.type == tokenize.STRING:
                text = re.sub(r"""^[a-zA-Z]*("{3}|'{3}|["'])|("{3}|'{3}|["'])$""", "", text)
            parts.append(Part(token.start[0], text))


def texts_of(path: Path) -> Iterator[list[Part]]:
    """Yield what a person reads in a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from texts_of_python(source)
    else:
        yield [Part(1, source)]


def pattern_of(phrase: str) -> re.Pattern[str]:
    """Compile a phrase, so that it is also found where it continues on the next line."""
    return re.compile(rf"(?<!\w)(?:{phrase.replace(' ', SPACE)})(?!\w)", re.IGNORECASE)


PATTERNS = {phrase: pattern_of(phrase) for phrase in PHRASES}


def find(path: Path, name: str) -> list[Finding]:
    """Find the phrases in a file; its name, relative to the project, decides about exemptions."""
    findings = []
    for parts in texts_of(path):
        text = "".join(part.text for part in parts)
        for phrase, pattern in PATTERNS.items():
            if phrase in EXEMPT.get(name, ()):
                continue
            for match in pattern.finditer(text):
                shown = re.sub(SPACE, " ", match[0])
                findings.append(Finding(line_at(parts, match.start()), shown, PHRASES[phrase]))
    return sorted(findings)


def line_at(parts: list[Part], offset: int) -> int:
    """Return the line of an offset into joined parts."""
    for part in parts:
        if offset < len(part.text):
            return part.line + part.text.count("\n", 0, offset)
        offset -= len(part.text)
    raise ValueError("the offset is behind the text")


def main() -> int:
    """Print all findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="by default, all files of the project")
    files = parser.parse_args().files or [path for glob in FILES for path in ROOT.glob(glob)]
    count = 0
    for path in sorted(path.resolve() for path in files):
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
        for finding in find(path, name):
            count += 1
            print(f'{name}:{finding.line}: "{finding.phrase}" -> {finding.instead}')
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
