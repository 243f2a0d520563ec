"""Verbs that ask a model: embed, fill, next."""

import json
import re
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.progress import progress
from unmask.errors import SettingsError, UserError, plural, unknown
from unmask.use import POOLS

if TYPE_CHECKING:
    from unmask.use.model import Model

ModelName = Annotated[str, typer.Argument(help="A model folder, or a fetched model's name.")]
Truncate = Annotated[bool, typer.Option(help="Cut a text that is too long, or refuse it.")]


def add_to(app: typer.Typer) -> None:
    """Register the verbs of this file."""
    for verb in (embed, fill):
        app.command()(verb)
    app.command("next")(next_sentence)


def embed(
    model: ModelName,
    file: Annotated[str, typer.Argument(help="Texts: .txt .jsonl .csv .tsv .parquet, or -")] = "-",
    out: Annotated[
        Path | None, typer.Option(help=".npy or .jsonl; JSONL on standard output if left out.")
    ] = None,
    pool: Annotated[str, typer.Option(help="mean or cls.")] = "mean",
    layer: Annotated[
        str, typer.Option(help="0 (embeddings) to the last, -1 from the end, or last4.")
    ] = "-1",
    normalize: Annotated[bool, typer.Option(help="Give every vector length 1.")] = True,
    column: Annotated[str | None, typer.Option(help="Where a table has its text.")] = None,
    truncate: Truncate = True,
) -> None:
    """Turn each text of a file into a vector."""
    from unmask.data.readers import read_texts, refuse_empty

    if out is not None and out.suffix not in (".npy", ".jsonl"):
        raise SettingsError(f"--out {out}: unknown ending '{out.suffix}'; need .npy or .jsonl.")
    if out is not None and out.exists():
        raise SettingsError(f"--out {out}: exists already; it is never overwritten. Move it away.")
    if out is not None and not out.parent.is_dir():
        raise SettingsError(f"--out {out}: there is no folder {out.parent}. Make it first.")
    if pool not in POOLS:
        raise SettingsError(unknown("pool", pool, POOLS))
    if layer != "last4" and not re.fullmatch("-?[0-9]+", layer):
        raise SettingsError(f"--layer {layer}: need a number or last4.")
    records = refuse_empty(file, read_texts(file, column=column))
    loaded = _load(model)
    from unmask.use.model import AHEAD, TextTooLong

    options: dict[str, Any] = {"pool": pool, "layer": layer if layer == "last4" else int(layer)}
    places: deque[tuple[int, str]] = deque(maxlen=2 * AHEAD)  # where the latest texts stood
    with progress("embedding", unit="texts") as advance:

        def texts() -> Iterator[str]:
            for number, record in enumerate(records, start=1):
                places.append((number, record.where))
                yield record.text
                advance()

        vectors = loaded.embeddings(texts(), normalize=normalize, truncate=truncate, **options)
        try:
            _write_vectors(vectors, out)
        except TextTooLong as error:
            where = dict(places).get(error.number)
            raise TextTooLong(error.number, error.tokens, error.limit, where) from None
    _say_what_was_cut(loaded)


def _write_vectors(vectors: Iterator[Any], out: Path | None) -> None:
    """JSONL as they come; .npy at the end, under another name until it is whole."""
    import numpy as np

    if out is None:
        for vector in vectors:
            print(json.dumps([round(float(x), 7) for x in vector]))
        return
    unfinished = out.with_name(f".{out.name}.tmp")
    try:
        if out.suffix == ".npy":
            with unfinished.open("wb") as file:
                np.save(file, np.stack(list(vectors)))
        else:
            with unfinished.open("w") as lines:
                for vector in vectors:
                    lines.write(json.dumps([round(float(x), 7) for x in vector]) + "\n")
        unfinished.rename(out)
    finally:
        unfinished.unlink(missing_ok=True)


def fill(
    model: ModelName,
    text: Annotated[str, typer.Argument(help="A text with one [MASK] or more.")],
    top: Annotated[int, typer.Option(min=1, help="How many guesses for each.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
    truncate: Truncate = True,
) -> None:
    """Guess the hidden tokens of a text."""
    if "[MASK]" not in text:
        raise UserError(f"'{text[:60]}': no [MASK] in it. Write [MASK] where a token is hidden.")
    loaded = _load(model)
    places = loaded.fill(text, top=top, truncate=truncate)
    if as_json:
        print(json.dumps([[vars(guess) for guess in guesses] for guesses in places]))
    else:
        for number, guesses in enumerate(places, start=1):
            if len(places) > 1:
                print(f"[MASK] {number}")
            for guess in guesses:
                print(f"{guess.probability:>8.2%}  {guess.token}")
    _say_what_was_cut(loaded)


def next_sentence(
    model: ModelName,
    first: Annotated[str, typer.Argument(help="A sentence.")],
    second: Annotated[str, typer.Argument(help="Perhaps the one after it.")],
    truncate: Truncate = True,
) -> None:
    """Say how likely the second text is to have followed the first."""
    loaded = _load(model)
    share = loaded.next(first, second, truncate=truncate)
    print(f"{share:.2%}  {'follows' if share >= 0.5 else 'does not follow'}")
    _say_what_was_cut(loaded)


def _load(model: str) -> "Model":
    from unmask.checkpoint.fetch import locate

    locate(model)  # a wrong name answers before torch is imported
    from unmask.use.model import Model

    return Model.load(model)


def _say_what_was_cut(model: "Model") -> None:
    if model.cut_texts:
        texts = f"{model.cut_texts:,} {plural('text', model.cut_texts)}"
        print(
            f"cut: {texts} longer than {model.network.config.max_length} tokens; "
            f"{model.cut_tokens:,} tokens at the end not read (--no-truncate refuses such texts)",
            file=sys.stderr,
        )
