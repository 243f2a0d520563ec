"""The command line: `unmask VERB ...`, with one module per family of verbs.

A verb parses its options, calls one function and prints the result. Its docstring is its help.
Verbs import torch themselves, so that help and usage errors appear at once.
"""

import os
import sys
import time
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
from unmask.cli.arguments import common_flags, current_flags, options_and_texts
from unmask.cli.help import COMMON_FLAGS, OVERVIEW_END, GroupedVerbs
from unmask.cli.progress import terminal
from unmask.cli.streams import OutputLost, flush_quietly, guard_streams
from unmask.system.errors import Stopped, UserError
from unmask.system.plugins import load_plugin
from unmask.version import VERSION

Verb = Callable[..., None]
app = typer.Typer(
    name="unmask",
    help="BERT, whole: from raw text to a trained, inspected and served model.",
    epilog=OVERVIEW_END,
    cls=GroupedVerbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
GROUPS: dict[str, dict[str, Verb | typer.Typer]] = {
    "Data": {
        "tokenize": text.tokenize,
        "vocab": text.vocab,
        "prepare": corpus.prepare,
        "check": tasks.check,
    },
    "Train": {
        "pretrain": training.pretrain,
        "finetune": tasks.finetune,
        "translate": translate.verbs,
        "evaluate": tasks.evaluate,
        "demo": demo.demo,
    },
    "Use": {
        "get": models.get,
        "embed": infer.embed,
        "fill": infer.fill,
        "next": infer.next_sentence,
        "predict": tasks.predict,
        "convert": models.convert,
        "compile": models.compile_model,
        "export": models.export,
    },
    "Inspect": {"info": models.info, "look": look.look},
    "Serve": {"serve": serve.serve},
}
VERBS: dict[str, Verb] = {}  # without those that have verbs of their own
for heading, verbs in GROUPS.items():
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name, rich_help_panel=heading)
        else:
            VERBS[name] = verb
            command = app.command(name, rich_help_panel=heading, epilog=COMMON_FLAGS)
            command(options.flatten_options(verb))


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
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and errors only.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print options, settings, files and timings.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the traceback of an error, for bug reports.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="Load a file with your own objectives, tasks, metrics or callbacks."),
    ] = None,
) -> None:
    """BERT from raw text to a trained, inspected and served model."""
    # `common_flags` has taken these flags out of the words already; here they are only listed.


def main() -> None:
    """Run a verb. Exit codes: 0 done, 1 failed, 2 bad usage, settings or data.

    A verb that signal N has stopped ends with 128 + N: 130 for SIGINT, 143 for SIGTERM.
    """
    _print_utf8()
    guard_streams()
    words = sys.argv[1:]
    try:
        # Known before anything can fail: an error among the flags may need its traceback too.
        code = _run(words, "--trace" in options_and_texts(words)[0])
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


def _run(words: list[str], trace: bool) -> int:
    """Run a verb and return its exit code; print errors, usually as one line."""
    try:
        return _run_verb(words, trace)
    finally:
        terminal.quiet = terminal.verbose = False  # for a program that runs several verbs


def _run_verb(words: list[str], trace: bool) -> int:
    started = time.monotonic()
    try:
        flags, words = common_flags(words)
        flags.check()
        terminal.quiet, terminal.verbose = flags.quiet, flags.verbose
        for file in flags.plugins:
            load_plugin(file)  # before typer parses the rest: plugins may add names to the help
        tasks.name_tasks()  # again, now with the tasks of plugins
        try:
            # Not standalone: errors are raised, and printed here.
            code = app(
                current_flags(words, terminal.say), standalone_mode=False, prog_name="unmask"
            )
        finally:
            terminal.finish()  # an error must not appear above a bar
        sys.stdout.flush()  # a failure to write the last lines still counts
        terminal.detail(f"time: {time.monotonic() - started:.2f} s in all")
        return code or 0
    except typer.TyperException as error:
        message = error.format_message()
        terminal.error(message if message.startswith("Usage:") else f"error: {message}")
        return 2
    except UserError as error:
        _print_error(str(error), trace)
        return 2
    except Stopped as stopped:  # by a signal
        return stopped.exit_code
    except KeyboardInterrupt:
        _print_error("interrupted.", trace=False)
        return 130
    except OutputLost as error:
        if error.exit_code:
            _print_error(str(error), trace)
        return error.exit_code
    except OSError as error:
        _print_error(f"{error.filename or 'the system'}: {error.strerror or error}", trace)
        return 1


def _print_utf8() -> None:
    """Write UTF-8 into pipes and files; a terminal keeps its encoding and shows \\u escapes."""
    if isinstance(sys.stdout, TextIOWrapper) and "PYTHONIOENCODING" not in os.environ:
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8")


def _print_error(message: str, trace: bool) -> None:
    """Print an error in one line, below its traceback with --trace."""
    if trace:
        terminal.error(traceback.format_exc().rstrip())
    terminal.error(f"error: {message}")
