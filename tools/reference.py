"""Signatures, docstrings and commands -> docs/api.md and docs/cli.md.

python tools/reference.py            write both pages
python tools/reference.py --check    compare them instead; exit code 1 if they differ
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

import unmask
from unmask.cli import app
from unmask.infer.model import Model

ROOT = Path(__file__).parents[1]
WIDTH = 120  # columns of a line
CELL = 160  # characters of a table cell
UNBROKEN = "\0"  # stands for a space at which a line may not end
COMMAND = "python tools/reference.py"
FUNCTIONS = """
get load learn_vocabulary prepare pretrain finetune evaluate predict translate compile export serve
register
""".split()
ERRORS = "UserError SettingsError DataError FolderError FetchError Stopped".split()
METHODS = """embed embeddings tokenize fill next classify score answer entities translate attention
to save scores""".split()
NOTE = f"<!-- Written by `{COMMAND}`, which also updates this page. -->"


def api() -> str:
    """Return the page of the Python API."""
    results = [
        name for name in unmask.__all__ if name not in (*FUNCTIONS, *ERRORS, "Model", "__version__")
    ]
    parts = [
        f"# Python API\n\n{NOTE}",
        paragraph(
            "Everything in `unmask.__all__`. The functions print nothing: their messages and "
            'progress go to the logger "unmask", and `logging.basicConfig(level=logging.INFO)` '
            "shows them. [use.md](use.md) and [finetune.md](finetune.md) show them at work."
        ),
        "## Functions",
        *(function(f"unmask.{name}", getattr(unmask, name)) for name in FUNCTIONS),
        "## `unmask.Model`",
        described(inspect.cleandoc(Model.__doc__ or "")),
        *(method(name) for name in METHODS),
        "## Results",
        paragraph(
            "Results are frozen dataclasses. `to_dict()` returns their fields as values that "
            "`json.dumps` accepts; their `repr` shortens long lists and arrays."
        ),
        *(result(name) for name in results),
        "## Errors",
        table(
            ("error", "meaning"),
            [(f"`{name}`", first_line(getattr(unmask, name))) for name in ERRORS],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def function(name: str, thing: Callable[..., object]) -> str:
    """Return the section of a function: its signature, description, arguments and example."""
    return f"### `{name}`\n\n{signature(name, thing)}\n\n{described(inspect.getdoc(thing) or '')}"


def method(name: str) -> str:
    """Return the section of a method or property of `Model`."""
    thing = inspect.getattr_static(Model, name)
    if isinstance(thing, property):
        return f"### `model.{name}`\n\n{described(inspect.getdoc(thing) or '')}"
    return function(f"model.{name}", thing)


def signature(name: str, thing: Callable[..., object]) -> str:
    """Return a signature as a block, with one argument a line if it is long."""
    found = inspect.signature(thing)
    kept = [p for p in found.parameters.values() if p.name != "self"]
    found = found.replace(parameters=kept)
    line = f"{name}{unquoted(str(found))}"
    if len(line) > WIDTH - 20:
        inside, star = [], False
        for parameter in kept:
            if parameter.kind is parameter.KEYWORD_ONLY and not star:
                inside.append("    *,")
                star = True
            inside.append(f"    {unquoted(str(parameter))},")
        line = "\n".join([f"{name}(", *inside, f") -> {unquoted(str(found.return_annotation))}"])
    return f"```py\n{line}\n```"


def unquoted(text: str) -> str:
    """Remove the quotes of annotations, and modules where the name says enough."""
    text = re.sub(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'", lambda m: m[1] or m[2], text)
    return text.replace("Texts", "Any")


def described(doc: str) -> str:
    """Turn a docstring into Markdown: paragraphs, a table of arguments, and an example."""
    body, _, example = doc.partition("\nExample:\n")
    text, _, arguments = body.partition("\nArgs:\n")
    parts = [paragraph(part) for part in text.strip().split("\n\n")]
    if arguments:
        parts.append(bullets(argument_rows(textwrap.dedent(arguments))))
    if example:
        parts.append(f"```py\n{textwrap.dedent(example).strip()}\n```")
    return "\n\n".join(parts)


def argument_rows(text: str) -> Iterator[tuple[str, str]]:
    """Yield each argument with its description."""
    for entry in re.split(r"\n(?=\w+: )", text.strip()):
        name, _, meaning = entry.partition(": ")
        yield f"`{name}`", meaning


def result(name: str) -> str:
    """Return the section of a result class: its fields as in its source, with their comments."""
    kind = getattr(unmask, name)
    source = textwrap.dedent(inspect.getsource(kind))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    lines = source.splitlines()
    fields = [
        "\n".join(lines[field.lineno - 1 : field.end_lineno])
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    ]
    block = "\n".join(textwrap.dedent(field) for field in fields)
    return f"### `unmask.{name}`\n\n{paragraph(first_line(kind))}\n\n```py\n{block}\n```"


def first_line(thing: object) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def cli() -> str:
    """Return the page of the command line."""
    root = typer.main.get_command(app)
    parts = [
        f"# Command line\n\n{NOTE}",
        paragraph(
            "A reference of every command, with its arguments and options. `unmask COMMAND --help` "
            "prints the same text. [commands.md](commands.md) is the guide: options of every "
            "command, JSON output, devices, exit codes and shell completion."
        ),
        "## `unmask`",
        option_list(root),
        *sections(root, "unmask"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def sections(group: Any, path: str) -> Iterator[str]:
    """Yield the section of each command of a group, and of the groups inside it."""
    for name, command in getattr(group, "commands", {}).items():
        if command.hidden:
            continue
        full = f"{path} {name}"
        if getattr(command, "commands", None):
            yield f"## `{full}`"
            yield paragraph(command.help or "")
            yield from sections(command, full)
            continue
        yield f"{'##' if path == 'unmask' else '###'} `{full}`"
        yield command_text(command, full)


def command_text(command: Any, full: str) -> str:
    """Return the usage, description and options of a command."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = " ".join(placeholder(p) for p in arguments)
    usage = f"```console\n$ {full} [OPTIONS] {words}".rstrip() + "\n```"
    help_text = inspect.cleandoc(command.help or "")
    body, _, example = help_text.partition("Example: ")
    parts = [usage, *(paragraph(part) for part in body.strip().split("\n\n") if part.strip())]
    if example:
        # A long example goes on in a second line, which the shell does not know.
        parts.append(f"```console\n$ {' '.join(example.split())}\n```")
    rows = [(f"`{placeholder(p)}`", p.help) for p in arguments if getattr(p, "help", None)]
    if rows:
        parts.append(bullets(rows))
    parts.append(option_list(command))
    return "\n\n".join(part for part in parts if part)


def placeholder(argument: Any) -> str:
    """Return an argument as a usage line shows it: [OPTIONAL], REPEATED..."""
    name = argument.metavar or argument.name.upper()
    if argument.metavar is None and not argument.required:
        name = f"[{name}]"
    return f"{name}..." if argument.nargs == -1 else name


def option_list(command: Any) -> str:
    """Return the options of a command as a list."""
    rows = []
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden and option.name != "help":
            names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
            rows.append((names + shown_default(option), option.help or ""))
    return bullets(rows)


def shown_default(option: Any) -> str:
    """Return the default of an option, if it has one that says something."""
    if option.required:
        return " (required)"
    value = option.default
    if value is None or value is False or callable(value):
        return ""
    return " (on by default)" if value is True else f" (default `{value}`)"


def bullets(rows: Iterable[tuple[str, str]]) -> str:
    """Return a list of names with their meanings."""
    items = (f"- {name}: {meaning}" if meaning else f"- {name}" for name, meaning in rows)
    return "\n".join(paragraph(item, indent="  ") for item in items)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; a cell that is too long for one is refused."""
    lines = [head, tuple("---" for _ in head), *rows]
    if long := [cell for row in lines for cell in row if len(cell) > CELL]:
        raise SystemExit(f"a table cell has {len(long[0])} characters; {CELL} fit: {long[0]}")
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def paragraph(text: str, indent: str = "") -> str:
    """Wrap a paragraph, or an item of a list; code is not broken."""
    code = re.compile(r"`[^`]*`")
    words = code.sub(lambda span: span[0].replace(" ", UNBROKEN), " ".join(text.split()))
    wrapped = textwrap.fill(
        words,
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace(UNBROKEN, " ")


PAGES = {"api.md": api, "cli.md": cli}


def main() -> None:
    """Write the pages, or compare them."""
    wrong = []
    for name, make in PAGES.items():
        path, text = ROOT / "docs" / name, make()
        if sys.argv[1:] != ["--check"]:
            path.write_text(text, "utf-8", newline="\n")
        elif not path.exists() or path.read_text("utf-8") != text:
            wrong.append(f"docs/{name}")
    if wrong:
        sys.exit(f"{', '.join(wrong)}: not as in the code. Run: {COMMAND}")


if __name__ == "__main__":
    main()
