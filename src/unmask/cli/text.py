"""Verbs on text and vocabularies: tokenize, vocab learn."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.progress import progress
from unmask.errors import SettingsError, UserError, unknown
from unmask.text import CRITERIA

vocab = typer.Typer(help="Learn a vocabulary.", no_args_is_help=True, rich_markup_mode=None)


def add_to(app: typer.Typer) -> None:
    """Register the verbs of this file."""
    app.command()(tokenize)
    app.add_typer(vocab, name="vocab")


def tokenize(
    model: Annotated[str, typer.Argument(help="A model, or a folder with a vocabulary.")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; lines of standard input if left out.")
    ] = None,
    pair: Annotated[bool, typer.Option(help="The two texts are one pair.")] = False,
    limit: Annotated[int | None, typer.Option(min=3, help="At most so many tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show the tokens of a text, their ids, segments and places in the text."""
    from unmask.checkpoint.fetch import locate
    from unmask.text.files import read_tokenizer

    if pair and (texts is None or len(texts) != 2):
        raise UserError(f"--pair: {len(texts or [])} texts; need exactly two, each in quotes.")
    tokenizer = read_tokenizer(locate(model))
    given: Iterable[list[str]] = [texts] if pair and texts else ([t] for t in texts or _stdin())
    for parts in given:
        encoded = tokenizer.encode(*parts, limit=limit)
        tokens = [tokenizer.vocabulary.tokens[i] for i in encoded.ids]
        if as_json:
            line = {"tokens": tokens, "ids": encoded.ids, "segments": encoded.segments}
            print(json.dumps(line | {"offsets": encoded.offsets, "cut": encoded.cut}))
        else:
            _print_table(parts, tokens, encoded.ids, encoded.segments, encoded.offsets)
            if encoded.cut:
                print(f"{encoded.cut} tokens did not fit into {limit}", file=sys.stderr)


def _print_table(
    parts: list[str],
    tokens: list[str],
    ids: list[int],
    segments: list[int],
    offsets: list[tuple[int, int]],
) -> None:
    width = max(len(token) for token in tokens)
    for token, number, segment, (start, end) in zip(tokens, ids, segments, offsets, strict=True):
        piece = parts[segment][start:end]
        place = f"{start:>6}-{end:<6} {piece!r}" if end else ""
        print(f"{token:<{width}} {number:>7}  {segment}  {place}".rstrip())


def _stdin() -> Iterator[str]:
    from unmask.data.readers import read_texts

    return (record.text for record in read_texts("-"))


@vocab.command("learn")
def vocab_learn(
    files: Annotated[list[str], typer.Argument(help="Text files: .txt .jsonl .csv .tsv .parquet")],
    size: Annotated[int, typer.Option(help="How many tokens.")],
    out: Annotated[Path, typer.Option(help="The folder to write; must not exist.")],
    criterion: Annotated[str, typer.Option(help="frequency or likelihood.")] = "frequency",
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    coverage: Annotated[
        float, typer.Option(help="Share of the characters that must be spelled.")
    ] = 0.9999,
    column: Annotated[str | None, typer.Option(help="Where a table has its text.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that count words.")] = 1,
) -> None:
    """Learn a WordPiece vocabulary from text, the same for any number of workers."""
    from unmask.checkpoint.integrity import publish, refuse_existing
    from unmask.data.readers import read_texts, refuse_empty

    if criterion not in CRITERIA:
        raise SettingsError(unknown("criterion", criterion, CRITERIA))
    refuse_existing(out)
    readers = [(file, read_texts(file, column=column)) for file in files]

    from unmask.settings import build  # numpy and the tokenizer only after the cheap checks
    from unmask.text.count import count_words
    from unmask.text.files import tokenizer_files
    from unmask.text.learn import LearnSettings, learn, report
    from unmask.text.tokenizer import Casing, Tokenizer

    settings = build(
        LearnSettings,
        {"size": size, "criterion": criterion, "coverage": coverage},
        where="vocab learn",
    )
    casing = Casing(lowercase=not cased)
    texts = (record.text for file, records in readers for record in refuse_empty(file, records))
    with progress("counting words", unit="characters") as advance:
        words = count_words(texts, casing, workers=workers, progress=advance)
    with progress("learning tokens", size, unit="tokens") as advance:
        vocabulary = learn(
            words, settings, progress=lambda done, total: advance(done=done, total=total)
        )
    result = report(words, vocabulary, casing)
    recipe = {"vocab learn": settings.model_dump() | {"cased": cased}}
    about = {"recipe": recipe, "provenance": {"files": [Path(file).name for file in files]}}
    with publish(out, about) as folder:
        for name, contents in tokenizer_files(Tokenizer(vocabulary, casing)).items():
            (folder / name).write_bytes(contents.encode("utf-8"))
        (folder / "report.json").write_text(json.dumps(vars(result), indent=2) + "\n")
    if result.tokens < size:
        print(f"the text has no more than {result.tokens:,} tokens worth learning", file=sys.stderr)
    print(f"tokens              {result.tokens:>14,}")
    print(f"words               {result.words:>14,}   {result.distinct_words:,} distinct")
    print(f"characters spelled  {result.characters_spelled:>14.4%}")
    print(f"unknown words       {result.unknown_words:>14.4%}")
    print(f"tokens per word     {result.tokens_per_word:>14.3f}")
    print(f"written to {out}")
