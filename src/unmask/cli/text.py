"""Verbs for text and vocabularies: tokenize, vocab learn."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_inputs
from unmask.cli.help import COMMON_FLAGS
from unmask.cli.progress import answer, notice, progress, terminal
from unmask.system.disk import check_output_folder
from unmask.system.errors import SettingsError, UserError, unknown_name
from unmask.text import CRITERIA

if TYPE_CHECKING:
    from unmask.text.tokenizer import Encoded

vocab = typer.Typer(
    help="Learn a vocabulary from your own text.", no_args_is_help=True, rich_markup_mode=None
)


def tokenize(
    model: Annotated[
        str,
        typer.Argument(help="A model, or a vocabulary folder.", autocompletion=completion.models),
    ],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; without them, the lines of standard input.")
    ] = None,
    pair: Annotated[bool, typer.Option(help="Encode the two texts as one pair.")] = False,
    limit: Annotated[int | None, typer.Option(min=3, help="Maximum number of tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per text.")] = False,
) -> None:
    """Show the tokens of texts with ids, segments and offsets.

    Texts are arguments or lines of standard input. With --pair, two texts are one input.

    Example: unmask tokenize minilm "Unaffable, she said."
    """
    if pair and (texts is None or len(texts) != 2):
        raise UserError(f"--pair: {len(texts or [])} texts; need exactly two, each in quotes.")
    from unmask.checkpoint.fetch import locate

    folder = locate(model)  # refuses a wrong name before more is imported
    from unmask.checkpoint.vocabulary import load_tokenizer

    tokenizer = load_tokenizer(folder)
    inputs: Iterable[list[str]] = [texts] if pair and texts else ([t] for t in texts or _stdin())
    for parts in inputs:
        encoded = tokenizer.encode(*parts, limit=limit)
        tokens = [tokenizer.vocabulary.tokens[i] for i in encoded.ids]
        if as_json:
            line = {"tokens": tokens, "ids": encoded.ids, "segments": encoded.segments}
            answer(json.dumps(line | {"offsets": encoded.offsets, "cut": encoded.cut}))
        else:
            _print_table(parts, tokens, encoded)
            if encoded.cut:
                notice(f"{encoded.cut} tokens were cut off; the limit is {limit}")


def _print_table(parts: list[str], tokens: list[str], encoded: "Encoded") -> None:
    width = max(len(token) for token in tokens)
    columns = tokens, encoded.ids, encoded.segments, encoded.offsets
    for token, number, segment, (start, end) in zip(*columns, strict=True):
        source = parts[segment][start:end]
        span = f"{start:>6}-{end:<6} {source!r}" if end else ""
        answer(f"{token:<{width}} {number:>7}  {segment}  {span}".rstrip())


def _stdin() -> Iterator[str]:
    from unmask.data.read.texts import read_texts, refuse_empty

    return (record.text for record in refuse_empty("standard input", read_texts("-")))


CriterionOption = Annotated[
    str,
    typer.Option(
        help="How tokens are chosen: frequency or likelihood.",
        autocompletion=completion.choices(*CRITERIA),
    ),
]
CoverageOption = Annotated[
    float, typer.Option(help="Share of the characters in the text to cover.")
]


def vocab_learn(
    files: options.TextFiles,
    size: Annotated[int, typer.Option(help="Vocabulary size.")],
    out: options.NewFolder,
    criterion: CriterionOption = "frequency",
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    coverage: CoverageOption = 0.9999,
    column: options.Column = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that count words.")] = 1,
    as_json: options.Json = False,
) -> None:
    """Learn a WordPiece vocabulary from text files.

    The result is the same for any number of workers.

    Example: unmask vocab learn texts.txt --size 8192 --out vocabulary
    """
    from unmask.data.read.texts import read_texts

    if criterion not in CRITERIA:
        raise SettingsError(unknown_name("criterion", criterion, CRITERIA))
    check_output_folder(out, renamed=True)
    check_inputs(files)
    for file in files:
        read_texts(file, column=column)  # refuses a wrong path before numpy is imported
    from unmask.checkpoint.vocabulary import learn_folder
    from unmask.system.settings import validate
    from unmask.text.learn import LearnSettings

    table = {"size": size, "criterion": criterion, "coverage": coverage}
    settings = validate(LearnSettings, table, where="vocab learn")
    with progress("counting words", "characters") as job:
        result = learn_folder(
            files,
            out,
            settings,
            cased=cased,
            column=column,
            workers=workers,
            counting=job.advance,
            learning=partial(terminal.progress, "learning tokens", "tokens"),
        )
    if result.tokens < size:
        notice(f"the text supports a vocabulary of only {result.tokens:,} tokens")
    if as_json:
        options.print_json({"folder": str(out), **vars(result)})
        return
    print(f"tokens              {result.tokens:>14,}")
    print(f"words               {result.words:>14,}   {result.distinct_words:,} distinct")
    print(f"characters covered  {result.characters_spelled:>14.4%}")
    print(f"unknown words       {result.unknown_words:>14.4%}")
    print(f"tokens per word     {result.tokens_per_word:>14.3f}")
    print(f"written to {out}")


vocab.command("learn", epilog=COMMON_FLAGS)(options.flatten_options(vocab_learn))
