"""The command line: one small file per family of verbs; parse, call one function, print.

Nothing here imports torch before a verb needs it, so that help and usage errors answer at once.
"""

import os
import sys
import traceback
from io import TextIOWrapper
from typing import Annotated

import typer

from unmask.cli import (
    answers,
    corpus,
    look,
    models,
    serve,
    story,
    tasks,
    text,
    training,
    translate,
)
from unmask.errors import Stopped, UserError
from unmask.version import VERSION

app = typer.Typer(
    name="unmask",
    help="BERT, whole: from raw text to a trained, inspected and served model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for family in (text, corpus, training, tasks, translate, models, answers, look, serve, story):
    family.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"unmask {VERSION}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and stop.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show the traceback of an error, for bug reports.")
    ] = False,
) -> None:
    """BERT, whole: from raw text to a trained, inspected and served model."""


def main() -> None:
    """Run a verb. Exit codes: 0 done, 1 failed, 2 usage, settings or data, 130 interrupted."""
    trace = "--trace" in sys.argv  # wherever it stands, before or after the verb
    arguments = [argument for argument in sys.argv[1:] if argument != "--trace"]
    _print_utf8()
    try:
        code = app(arguments, standalone_mode=False)  # click raises, and we say it
        sys.stdout.flush()  # while a broken pipe can still be caught
        sys.exit(code or 0)
    except typer.TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):
            print(message, file=sys.stderr)
        else:
            _say(message)
        sys.exit(2)
    except UserError as error:
        if trace:
            traceback.print_exc()
        _say(str(error))
        sys.exit(2)
    except Stopped as stopped:  # a run, after it has saved
        sys.exit(stopped.exit_code)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        _say("interrupted.")
        sys.exit(130)
    except OSError as error:
        if trace:
            traceback.print_exc()
        _say(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(1)


def _print_utf8() -> None:
    """Write UTF-8 into pipes and files; a terminal keeps its encoding and shows \\u escapes."""
    if isinstance(sys.stdout, TextIOWrapper) and "PYTHONIOENCODING" not in os.environ:
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8")


def _say(message: str) -> None:
    """One message, no traceback."""
    print(f"error: {message}", file=sys.stderr)
