"""Rename classes, functions and constants everywhere they are used; needs `pip install libcst`.

    python tools/rename.py tools/names.toml [SECTION ...]

A line `"module:Old" = "New"` renames what a module of the package defines: in that module, in every
file that imports it, and as an attribute of a module that was imported whole. Scopes are respected,
so a local variable, an attribute or a keyword of the same spelling stays.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, QualifiedNameProvider, QualifiedNameSource

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks")
PACKAGE = "unmask"


def module_of(path: Path) -> str:
    """The dotted name of a file of the package; empty for others."""
    if not path.is_relative_to(ROOT / "src"):
        return ""
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


class Renamer(cst.CSTTransformer):
    """Renames whatever has one of these qualified names."""

    METADATA_DEPENDENCIES = (QualifiedNameProvider,)

    def __init__(self, module: str, names: Mapping[str, str]) -> None:
        super().__init__()
        self.module, self.names = module, names
        self.imported: dict[str, str] = {}

    def _new(self, node: cst.CSTNode) -> str | None:
        for found in self.get_metadata(QualifiedNameProvider, node, set()):
            name = found.name
            if found.source is QualifiedNameSource.LOCAL:
                name = f"{self.module}.{name}"
            own = node.attr if isinstance(node, cst.Attribute) else getattr(node, "name", node)
            # A name that was imported under another one keeps that.
            if name in self.names and own.value == name.rpartition(".")[2]:
                return self.names[name]
        return None

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Leave the names of an import to `leave_ImportFrom`."""
        return False

    def leave_ImportFrom(self, node: cst.ImportFrom, new: cst.ImportFrom) -> cst.ImportFrom:
        """Rename what is imported."""
        if isinstance(new.names, cst.ImportStar) or new.module is None:
            return new
        source = cst.Module([]).code_for_node(new.module)
        aliases = []
        for alias in new.names:
            old = alias.name.value if isinstance(alias.name, cst.Name) else ""
            if renamed := self.names.get(f"{source}.{old}"):
                if alias.asname is None:
                    self.imported[old] = renamed
                alias = alias.with_changes(name=cst.Name(renamed))
            aliases.append(alias)
        return new.with_changes(names=aliases)

    def leave_Name(self, node: cst.Name, new: cst.Name) -> cst.Name:
        """Rename a use, or a constant where it is defined."""
        renamed = self._new(node)
        return new.with_changes(value=renamed) if renamed else new

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Look at the whole before its parts."""
        return True

    def leave_Attribute(self, node: cst.Attribute, new: cst.Attribute) -> cst.Attribute:
        """Rename `module.name`; any other attribute keeps its name."""
        renamed = self._new(node)
        kept = node.attr.value if renamed is None else renamed
        return new.with_changes(attr=cst.Name(kept))

    def leave_Arg(self, node: cst.Arg, new: cst.Arg) -> cst.Arg:
        """Keep keywords."""
        return new if node.keyword is None else new.with_changes(keyword=node.keyword)

    def leave_Param(self, node: cst.Param, new: cst.Param) -> cst.Param:
        """Keep the names of parameters."""
        return new.with_changes(name=node.name)

    def leave_FunctionDef(self, node: cst.FunctionDef, new: cst.FunctionDef) -> cst.FunctionDef:
        """Rename a function where it is defined."""
        return new.with_changes(name=cst.Name(self._new(node) or node.name.value))

    def leave_ClassDef(self, node: cst.ClassDef, new: cst.ClassDef) -> cst.ClassDef:
        """Rename a class where it is defined."""
        return new.with_changes(name=cst.Name(self._new(node) or node.name.value))

    def leave_Annotation(self, node: cst.Annotation, new: cst.Annotation) -> cst.Annotation:
        """Rename names in an annotation that is a string."""
        return new.with_changes(annotation=new.annotation.visit(Quoted(self._quoted)))

    def _quoted(self, word: str) -> str:
        return self.imported.get(word) or self.names.get(f"{self.module}.{word}") or word


class Quoted(cst.CSTTransformer):
    """Rewrites the words of strings."""

    def __init__(self, renamed: Callable[[str], str]) -> None:
        super().__init__()
        self.renamed = renamed

    def leave_SimpleString(self, node: cst.SimpleString, new: cst.SimpleString) -> cst.SimpleString:
        """Rename every word of the string."""
        return new.with_changes(value=re.sub(r"\w+", lambda m: self.renamed(m[0]), new.value))


def rewrite(path: Path, names: Mapping[str, str]) -> bool:
    """Rewrite one file; tell whether anything has changed."""
    text = path.read_text("utf-8")
    if not any(name.rpartition(".")[2] in text for name in names):
        return False
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    changed = wrapper.visit(Renamer(module_of(path), names)).code
    if changed == text:
        return False
    path.write_text(changed, encoding="utf-8")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("sections", nargs="*")
    given = parser.parse_args()
    table = tomllib.loads(given.table.read_text("utf-8"))
    names = {
        f"{PACKAGE}.{old.replace(':', '.')}": new
        for section in given.sections or table
        for old, new in table[section].items()
    }
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    with ProcessPoolExecutor(2) as pool:
        changed = list(pool.map(partial(rewrite, names=names), files, chunksize=8))
    for words in (["check", "--fix", "-q", "--select", "I", "."], ["format", "-q", "."]):
        subprocess.run([Path(sys.executable).with_name("ruff"), *words], cwd=ROOT, check=False)
    print(f"{sum(changed)} of {len(files)} files changed")


if __name__ == "__main__":
    main()
