"""The command line: `unmask VERB ...`, with one module per family of verbs.

A verb parses its options, calls one function and prints the result. Its docstring is its help.
Verbs import torch themselves, so that help and usage errors appear at once.
"""

import os
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import (
    corpus,
    demo,
    infer,
    look,
    models,
    options,
    serve,
    tasks,
    text,
    training,
    translate,
)
from unmask.cli.progress import terminal
from unmask.cli.streams import OutputLost, flush_quietly, guard_streams
from unmask.system.errors import Stopped, UserError
from unmask.system.plugins import load_plugin
from unmask.version import VERSION

app = typer.Typer(
    name="unmask",
    help="BERT, whole: from raw text to a trained, inspected and served model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
VERBS: dict[str, Callable[..., None]] = {
    "tokenize": text.tokenize,
    "prepare": corpus.prepare,
    "pretrain": training.pretrain,
    "finetune": tasks.finetune,
    "evaluate": tasks.evaluate,
    "predict": tasks.predict,
    "check": tasks.check,
    "get": models.get,
    "info": models.info,
    "convert": models.convert,
    "export": models.export,
    "compile": models.compile_model,
    "embed": infer.embed,
    "fill": infer.fill,
    "next": infer.next_sentence,
    "look": look.look,
    "serve": serve.serve,
    "demo": demo.demo,
}
OLD_FLAGS = {"--rate": "--learning-rate", "--batch": "--batch-size", "--length": "--max-length"}
for name, verb in VERBS.items():
    app.command(name)(options.flatten_options(verb))
app.add_typer(text.vocab, name="vocab")
app.add_typer(translate.verbs, name="translate")


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"unmask {VERSION}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the traceback of an error, for bug reports.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            help="Load a Python file with your own objectives, tasks, metrics or callbacks."
        ),
    ] = None,
) -> None:
    """BERT from raw text to a trained, inspected and served model."""


def main() -> None:
    """Run a verb. Exit codes: 0 done, 1 failed, 2 bad usage, settings or data, 130 interrupted."""
    _print_utf8()
    guard_streams()
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    words, texts = sys.argv[1:end], sys.argv[end:]
    trace = "--trace" in words  # typer accepts it before the verb only; users put it last
    try:
        code = _run([word for word in words if word != "--trace"] + texts, trace)
    finally:
        flush_quietly()
    _leave(code)


def _leave(code: int) -> None:
    """End the process with an exit code.

    One of several processes of torchrun ends without Python's clean-up: threads of gloo may outlive
    the process group and abort a process that is shutting down. All output is written by then.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _current_flags(arguments: list[str]) -> list[str]:
    """Replace flags of earlier versions by their present names, with a notice."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    current = list(arguments)
    for i, argument in enumerate(arguments[:end]):
        flag, equals, value = argument.partition("=")
        if flag in OLD_FLAGS:
            terminal.say(f"notice: the flag {flag} is now called {OLD_FLAGS[flag]}")
            current[i] = f"{OLD_FLAGS[flag]}{equals}{value}"
    return current


def _plugins(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split `--plugin FILE` options off the arguments, wherever they stand.

    Plugins are loaded before typer parses the rest, because they may add names to the help.
    """
    rest: list[str] = []
    files: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":  # what follows are texts or files, whatever they look like
            rest += [argument, *remaining]
        elif argument == "--plugin":
            file = next(remaining, None)
            if file is None:
                raise UserError("--plugin: need the path of a Python file, as in --plugin mine.py.")
            files.append(file)
        elif argument.startswith("--plugin="):
            files.append(argument.partition("=")[2])
        else:
            rest.append(argument)
    return rest, files


def _run(arguments: list[str], trace: bool) -> int:
    """Run a verb and return its exit code; print errors, usually as one line."""
    try:
        arguments, files = _plugins(arguments)
        for file in files:
            load_plugin(file)
        tasks.name_tasks()  # again, now with the tasks of plugins
        try:
            code = app(
                _current_flags(arguments), standalone_mode=False
            )  # errors are raised, and printed here
        finally:
            terminal.finish()  # an error must not appear above a bar
        sys.stdout.flush()  # a failure to write the last lines still counts
        return code or 0
    except typer.TyperException as error:
        message = error.format_message()
        terminal.say(message if message.startswith("Usage:") else f"error: {message}")
        return 2
    except UserError as error:
        _say(str(error), trace)
        return 2
    except Stopped as stopped:  # by a signal, after the run has saved its state
        return stopped.exit_code
    except KeyboardInterrupt:
        _say("interrupted.", trace=False)
        return 130
    except OutputLost as error:
        if error.exit_code:
            _say(str(error), trace)
        return error.exit_code
    except OSError as error:
        _say(f"{error.filename or 'the system'}: {error.strerror or error}", trace)
        return 1


def _print_utf8() -> None:
    """Write UTF-8 into pipes and files; a terminal keeps its encoding and shows \\u escapes."""
    if isinstance(sys.stdout, TextIOWrapper) and "PYTHONIOENCODING" not in os.environ:
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8")


def _say(message: str, trace: bool) -> None:
    """Print an error in one line, below its traceback with --trace."""
    if trace:
        terminal.say(traceback.format_exc().rstrip())
    terminal.say(f"error: {message}")
