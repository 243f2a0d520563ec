"""Verbs that query a model: embed, fill, next."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_format, check_inputs
from unmask.cli.progress import answer, notice, progress
from unmask.infer import ENDINGS, POOLS
from unmask.system.disk import check_output_file
from unmask.system.errors import SettingsError, plural, unknown_name
from unmask.text.vocabulary import require_mask_token

if TYPE_CHECKING:
    from unmask.infer.model import Model

LONG = 20.0  # seconds after which a faster way is suggested
Truncate = Annotated[bool, typer.Option(help="Truncate texts that are too long, or refuse them.")]


FileArgument = Annotated[
    str, typer.Argument(help="Texts: .txt .jsonl .csv .tsv .parquet; - is standard input.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(help="A .npy, .parquet or .jsonl file; without it, JSONL on standard output."),
]
PoolOption = Annotated[
    str,
    typer.Option(
        help="Pooling: mean (of all tokens) or cls.", autocompletion=completion.choices(*POOLS)
    ),
]
LayerOption = Annotated[
    str, typer.Option(help="0 is the embeddings, -1 the last layer; last4: the last four.")
]


def embed(
    model: options.ModelName,
    file: FileArgument = "-",
    out: OutOption = None,
    pool: PoolOption = "mean",
    layer: LayerOption = "-1",
    normalize: Annotated[bool, typer.Option(help="Scale every vector to length 1.")] = True,
    column: options.Column = None,
    truncate: Truncate = True,
    device: options.Device = "auto",
    as_json: options.Json = False,
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
        check_format(out)
    if pool not in POOLS:
        raise SettingsError(unknown_name("pool", pool, POOLS))
    if layer != "last4" and not re.fullmatch("-?[0-9]+", layer):
        raise SettingsError(f"--layer {layer}: need a number or last4.")
    check_inputs([file])
    read_texts(file, column=column)  # refuses a wrong format
    loaded = options.load_model(model, device)
    from unmask.infer.embed_files import embed_file, embed_lines

    watcher = ErrorPolicy()
    settings: dict[str, Any] = {"pool": pool, "layer": layer if layer == "last4" else int(layer)}
    settings |= {"normalize": normalize, "truncate": truncate, "column": column, "watcher": watcher}
    with speed_hint_after(loaded), progress("embedding", "texts") as job:
        if out is None:
            for line in embed_lines(loaded, file, **settings):
                answer(line)
                job.advance()
            written = job.done
        else:
            written = embed_file(loaded, file, out, progress=job.advance, say=notice, **settings)
    report_truncation(loaded)
    report_counts(file, "vector", written, blanks=watcher.blanks)
    if as_json and out is not None:
        table = {"file": str(out), "vectors": written, "blank_texts": watcher.blanks}
        options.print_json(table | _truncated(loaded))


def fill(
    model: options.ModelName,
    text: Annotated[str, typer.Argument(help="A text with one [MASK] or more.")],
    top: Annotated[int, typer.Option(min=1, help="Predictions per [MASK].")] = 5,
    truncate: Truncate = True,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Predict the masked tokens of a text.

    The most probable tokens are printed for each [MASK]. The model needs a masked-token head.

    Example: unmask fill my-run/model "A man eats [MASK]."
    """
    require_mask_token(text)
    loaded = options.load_model(model, device)
    masks = loaded.fill(text, top=top, truncate=truncate)
    if as_json:
        answer(json.dumps([[vars(prediction) for prediction in mask] for mask in masks]))
    else:
        for number, predictions in enumerate(masks, start=1):
            if len(masks) > 1:
                answer(f"[MASK] {number}")
            for prediction in predictions:
                answer(f"{prediction.probability:>8.2%}  {prediction.token}")
    report_truncation(loaded)


def next_sentence(
    model: options.ModelName,
    first: Annotated[str, typer.Argument(help="The first text.")],
    second: Annotated[str, typer.Argument(help="The text that may follow it.")],
    truncate: Truncate = True,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Estimate the probability that one text follows another.

    The model needs a next-sentence head.

    Example: unmask next my-run/model "A man eats bread." "Shares fell."
    """
    loaded = options.load_model(model, device)
    probability = loaded.next(first, second, truncate=truncate)
    follows = probability >= 0.5
    if as_json:
        options.print_json({"probability": probability, "follows": follows})
    else:
        answer(f"{probability:.2%}  {'follows' if follows else 'does not follow'}")
    report_truncation(loaded)


@contextmanager
def speed_hint_after(model: "Model") -> Iterator[None]:
    """Suggest a faster way in one line if the block took long and there is one."""
    started = time.monotonic()
    yield
    if time.monotonic() - started > LONG and model.faster:
        notice(f"faster: {model.faster}")


def report_truncation(
    model: "Model", limit: int | None = None, hint: str = " (--no-truncate refuses such texts)"
) -> None:
    """Report in one line how many texts and tokens were truncated, if any."""
    limit = limit or model.network.config.max_length
    if model.cut_texts:
        texts = f"{model.cut_texts:,} {plural('text', model.cut_texts)}"
        notice(
            f"truncated: {texts} longer than {limit} tokens; "
            f"{model.cut_tokens:,} tokens at the end were not read{hint}"
        )


def _truncated(model: "Model") -> dict[str, int]:
    return {"truncated_texts": model.cut_texts, "truncated_tokens": model.cut_tokens}


def report_counts(
    source: str, row: str, written: int, *, skipped: int = 0, blanks: int = 0
) -> None:
    """Report how many lines or records were read, written and skipped."""
    from unmask.data.read.lines import file_ending

    unit, read = "line" if file_ending(source) == ".txt" else "record", written + skipped
    note = f"; {blanks:,} blank {plural(unit, blanks)} read as empty text" if blanks else ""
    notice(
        f"{'standard input' if source == '-' else source}: {read:,} {plural(unit, read)} read, "
        f"{written:,} {plural(row, written)} written, {skipped:,} skipped{note}"
    )
