"""Verbs that query a model: embed, fill, next."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask import load
from unmask.cli import options
from unmask.cli.progress import answer, notice, progress
from unmask.infer import ENDINGS, POOLS
from unmask.system.disk import check_output_file
from unmask.system.errors import SettingsError, plural, unknown_name
from unmask.text.vocabulary import require_mask_token

if TYPE_CHECKING:
    from unmask.infer.model import Model

LONG = 20.0  # seconds after which a faster way is suggested
Truncate = Annotated[bool, typer.Option(help="Cut a text that is too long, or refuse it.")]


def embed(
    model: options.ModelName,
    file: Annotated[str, typer.Argument(help="Texts: .txt .jsonl .csv .tsv .parquet, or -")] = "-",
    out: Annotated[
        Path | None,
        typer.Option(help=".npy, .parquet or .jsonl; JSONL on standard output if left out."),
    ] = None,
    pool: Annotated[str, typer.Option(help="mean or cls.")] = "mean",
    layer: Annotated[
        str, typer.Option(help="0 (embeddings) to the last, -1 from the end, or last4.")
    ] = "-1",
    normalize: Annotated[bool, typer.Option(help="Give every vector length 1.")] = True,
    column: options.Column = None,
    truncate: Truncate = True,
) -> None:
    """Turn each text of a file into a vector.

    With --out, a killed job resumes when you run the same command again. A text that is longer than
    the model's limit is truncated.

    Example: unmask embed minilm texts.txt --out vectors.npy
    """
    from unmask.data.read.lines import ErrorPolicy
    from unmask.data.read.texts import read_texts

    if out is not None and out.suffix not in ENDINGS:
        raise SettingsError(
            f"--out {out}: unknown ending '{out.suffix}'; need one of {', '.join(ENDINGS)}."
        )
    if out is not None:
        check_output_file(out)
    if pool not in POOLS:
        raise SettingsError(unknown_name("pool", pool, POOLS))
    if layer != "last4" and not re.fullmatch("-?[0-9]+", layer):
        raise SettingsError(f"--layer {layer}: need a number or last4.")
    read_texts(file, column=column)  # refuses a wrong path before torch is imported
    loaded = load(model)
    from unmask.infer.embed_files import embed_file, embed_lines

    watcher = ErrorPolicy()
    how: dict[str, Any] = {"pool": pool, "layer": layer if layer == "last4" else int(layer)}
    how |= {"normalize": normalize, "truncate": truncate, "column": column, "watcher": watcher}
    with speed_hint_after(loaded), progress("embedding", "texts") as job:
        if out is None:
            for line in embed_lines(loaded, file, **how):
                answer(line)
                job.advance()
            written = job.done
        else:
            written = embed_file(loaded, file, out, progress=job.advance, say=notice, **how)
    report_truncation(loaded)
    say_counts(file, "vector", written, blanks=watcher.blanks)


def fill(
    model: options.ModelName,
    text: Annotated[str, typer.Argument(help="A text with one [MASK] or more.")],
    top: Annotated[int, typer.Option(min=1, help="How many guesses for each.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
    truncate: Truncate = True,
) -> None:
    """Predict the masked tokens of a text.

    The most probable tokens are printed for each [MASK]. The model needs a masked-token head.

    Example: unmask fill my-run/model "A man eats [MASK]."
    """
    require_mask_token(text)
    loaded = load(model)
    places = loaded.fill(text, top=top, truncate=truncate)
    if as_json:
        answer(json.dumps([[vars(guess) for guess in guesses] for guesses in places]))
    else:
        for number, guesses in enumerate(places, start=1):
            if len(places) > 1:
                answer(f"[MASK] {number}")
            for guess in guesses:
                answer(f"{guess.probability:>8.2%}  {guess.token}")
    report_truncation(loaded)


def next_sentence(
    model: options.ModelName,
    first: Annotated[str, typer.Argument(help="A sentence.")],
    second: Annotated[str, typer.Argument(help="Perhaps the one after it.")],
    truncate: Truncate = True,
) -> None:
    """Estimate the probability that one text follows another.

    The model needs a next-sentence head.

    Example: unmask next my-run/model "A man eats bread." "Shares fell."
    """
    loaded = load(model)
    share = loaded.next(first, second, truncate=truncate)
    answer(f"{share:.2%}  {'follows' if share >= 0.5 else 'does not follow'}")
    report_truncation(loaded)


@contextmanager
def speed_hint_after(model: "Model") -> Iterator[None]:
    """Suggest a faster way in one line if the block took long and there is one."""
    begun = time.monotonic()
    yield
    if time.monotonic() - begun > LONG and model.faster:
        notice(f"faster: {model.faster}")


def report_truncation(
    model: "Model", limit: int | None = None, hint: str = " (--no-truncate refuses such texts)"
) -> None:
    """Report in one line how many texts and tokens were truncated, if any."""
    limit = limit or model.network.config.max_length
    if model.cut_texts:
        texts = f"{model.cut_texts:,} {plural('text', model.cut_texts)}"
        notice(
            f"cut: {texts} longer than {limit} tokens; "
            f"{model.cut_tokens:,} tokens at the end not read{hint}"
        )


def say_counts(source: str, row: str, written: int, *, skipped: int = 0, blanks: int = 0) -> None:
    """Report how many lines or records were read, written and skipped."""
    from unmask.data.read.lines import file_ending

    unit, read = "line" if file_ending(source) == ".txt" else "record", written + skipped
    note = f"; {blanks:,} blank {plural(unit, blanks)} read as empty text" if blanks else ""
    notice(
        f"{'standard input' if source == '-' else source}: {read:,} {plural(unit, read)} read, "
        f"{written:,} {plural(row, written)} written, {skipped:,} skipped{note}"
    )
