"""Python source files -> documents in English: text that every installation already has.

Files are parsed, never imported. A document is the prose of the docstrings of one module, without
examples, tables and lists of parameters.
"""

import ast
import inspect
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("python", "torch", "numpy", "sympy", "networkx")  # unmask's dependencies: always there
SKIPPED = ("test", "tests", "testing", "_vendor", "idlelib", "lib2to3", "site-packages")
SHORTEST = 300  # characters; modules with less prose are skipped
_PARAGRAPH = re.compile(r"\n\s*\n")
_MARKUP = re.compile(
    r":[\w:]+:`~?([^`<]*?)(?:\s*<[^`>]*>)?`|``([^`]*)``|`([^`]*)`_?|\*\*?([^*\n]+)\*\*?"
)
# Signs of examples, tables and code.
_NOT_PROSE = (">>>", "::", "---", "===", "+--", "|", "\t", "{", "= ")
_PROSE = re.compile(r"[A-Z][^\n]*[.!?:]$", re.DOTALL)


@dataclass(frozen=True)
class Module:
    """Prose of one source file: a list of paragraphs, in the order of the file."""

    library: str
    name: str
    paragraphs: list[str]

    @property
    def characters(self) -> int:
        """Length in characters."""
        return sum(map(len, self.paragraphs))


def read_library(library: str, limit: int) -> Iterator[Module]:
    """Yield the modules of a library that contain prose, until about `limit` characters."""
    characters_read = 0
    for path in _files(library):
        for name, paragraphs in _sections(path):
            module = Module(library, name, paragraphs)
            if module.characters >= SHORTEST:
                yield module
                characters_read += module.characters
            if characters_read > limit:
                return


def _files(library: str) -> list[Path]:
    """List the source files of a library, largest first: these tend to have most documentation."""
    paths = sysconfig.get_paths()
    root = Path(paths["stdlib"]) if library == "python" else Path(paths["purelib"]) / library
    files = [
        path for path in root.rglob("*.py") if not set(path.relative_to(root).parts) & set(SKIPPED)
    ]
    return sorted(files, key=lambda path: (-path.stat().st_size, str(path)))


def _sections(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the docstrings of a file as one section, or each of pydoc's topics as one."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [
        ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)
    ]
    yield path.stem, [paragraph for text in texts for paragraph in _prose(text)]
    # pydoc's help texts are not docstrings but strings in a dictionary.
    if path.parent.name == "pydoc_data":
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield "topics", list(_prose(inspect.cleandoc(node.value)))


def _prose(text: str) -> Iterator[str]:
    """Yield the paragraphs that are sentences, without their line breaks and markup."""
    for paragraph in _PARAGRAPH.split(text):
        if any(sign in paragraph for sign in _NOT_PROSE):
            continue
        line = " ".join(paragraph.split())
        line = _MARKUP.sub(
            lambda match: next((group for group in match.groups() if group), ""), line
        )
        if 40 <= len(line) <= 1500 and _PROSE.match(line) and line.count(" ") >= 6:
            yield line
