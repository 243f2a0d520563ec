"""The verb `prepare`: text files -> corpus folder."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_inputs, require_optional
from unmask.cli.progress import notice, progress, terminal
from unmask.system.errors import SettingsError, unknown_name

ENGINES = ("processes", "ray")


TokenizerOption = Annotated[
    str, typer.Option(help="A vocabulary folder, or a model.", autocompletion=completion.models)
]
OutOption = Annotated[
    Path, typer.Option(help="The corpus folder: new, or an unfinished one to continue.")
]
LinesOption = Annotated[
    str, typer.Option(help="What a line of a .txt file is: sentences, documents or auto.")
]
WordsOption = Annotated[
    str, typer.Option(help="Words for whole-word masking: pieces, or spaces (already split).")
]
OnBadOption = Annotated[
    str,
    typer.Option(help="What to do with a bad record: stop, or skip and list it in skipped.jsonl."),
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Processes; all cores by default.")]
EngineOption = Annotated[
    str,
    typer.Option(
        help="processes, or ray (pip install 'unmask[ray]').",
        autocompletion=completion.choices(*ENGINES),
    ),
]


def prepare(
    files: options.TextFiles,
    tokenizer: TokenizerOption,
    out: OutOption,
    column: options.Column = None,
    lines: LinesOption = "auto",
    words: WordsOption = "pieces",
    on_bad: OnBadOption = "stop",
    workers: WorkersOption = None,
    task_id: Annotated[int, typer.Option(min=0, help="The number of this task, from 0.")] = 0,
    num_tasks: Annotated[int, typer.Option(min=1, help="Number of tasks that share the work.")] = 1,
    engine: EngineOption = "processes",
    as_json: options.Json = False,
) -> None:
    """Turn text files into a corpus for pre-training.

    A job that was killed resumes when you run the same command again.

    Example: unmask prepare texts.txt --tokenizer vocabulary --out corpus
    """
    from unmask.checkpoint.fetch import locate
    from unmask.checkpoint.vocabulary import load_tokenizer
    from unmask.data.corpus.prepare import PrepareSettings, PrepareTask, check_corpus_folder
    from unmask.data.corpus.prepare import prepare as run
    from unmask.data.read.lines import file_format
    from unmask.system.settings import validate

    _check_engine(engine, divided=bool(task_id or workers))
    table = {"column": column, "lines": lines, "words": words, "on_bad": on_bad}
    settings = validate(PrepareSettings, table, where="prepare")
    check_corpus_folder(out)
    check_inputs(files)
    for file in files:
        file_format(file)  # refuses any wrong path before the first file is read
    loaded = load_tokenizer(locate(tokenizer))
    cores = workers or os.cpu_count() or 1
    if engine == "ray":
        from unmask.data.corpus.ray import prepare_on_ray

        manifest = prepare_on_ray(files, loaded, out, settings, tasks=num_tasks)
    else:
        task = PrepareTask(number=task_id, tasks=num_tasks)
        with progress("preparing", "bytes"):
            manifest = run(
                files,
                loaded,
                out,
                settings,
                task=task,
                workers=cores,
                progress=partial(terminal.progress, "preparing", "bytes"),
                notice=notice,
            )
    if as_json:
        options.print_json(_result(manifest, out))
    elif manifest is None:
        print(f"task {task_id} of {num_tasks} is done; other tasks still have shards to write")
    else:
        show(manifest)
        print(f"written to {out}")


def _check_engine(engine: str, *, divided: bool) -> None:
    """Refuse an unknown engine, and Ray where it is missing or the work is divided by hand."""
    if engine not in ENGINES:
        raise SettingsError(unknown_name("engine", engine, ENGINES))
    if engine == "ray" and divided:
        raise SettingsError(
            "--engine ray: Ray schedules the work itself. Leave out --task-id and --workers."
        )
    if engine == "ray":
        require_optional("--engine ray")


def _result(manifest: dict[str, Any] | None, out: Path) -> dict[str, object]:
    """Return the result for --json; `finished` is false while other tasks have work to do."""
    if manifest is None:
        return {"folder": str(out), "finished": False}
    from unmask.data.corpus.statistics import CorpusReport

    statistics = CorpusReport(**manifest["statistics"])
    report = statistics.report()
    return {
        "folder": str(out),
        "finished": True,
        "records": manifest["records"],
        "documents": statistics.documents,
        "sentences": statistics.sentences,
        "tokens": statistics.tokens,
        "tokens_per_sentence": report["tokens a sentence"],
        "unknown_tokens": report["unknown share"],
        "repeated_sentences": statistics.duplicate_share,
        "single_sentence_documents": report["single share"],
    }


def show(manifest: dict[str, Any]) -> None:
    """Print statistics of a corpus to look at before training on it."""
    from unmask.data.corpus.statistics import CorpusReport

    statistics = CorpusReport(**manifest["statistics"])
    report = statistics.report()
    frequent: list[tuple[str, int]] = report["often"]
    records: dict[str, int] = manifest["records"]
    print(f"read                {records['read']:>14,}   lines or records")
    print(f"  used              {records['used']:>14,}")
    print(
        f"  skipped           {records['skipped']:>14,}   listed in skipped.jsonl with the reason"
    )
    print(f"  blank             {records['blank']:>14,}")
    print(f"documents           {statistics.documents:>14,}")
    print(f"  of one sentence   {report['single share']:>14.2%}   next-sentence pairs need two")
    print(f"sentences           {statistics.sentences:>14,}")
    print(f"  without a token   {statistics.empty:>14,}   skipped")
    print(f"  repeated          {statistics.duplicate_share:>14.2%}   estimated")
    for sentence, count in frequent[:3]:
        print(f"    {count:>8,} times  {sentence[:60]!r}")
    print(f"tokens              {statistics.tokens:>14,}")
    print(f"  per sentence      {report['tokens a sentence']:>14.1f}")
    print(f"  unknown           {report['unknown share']:>14.4%}")
    print(f"sentence lengths    {_histogram(statistics.sentence_bins)}")
    print(f"document lengths    {_histogram(statistics.document_bins)}")


def _histogram(bins: list[int]) -> str:
    """Format the shares of a histogram whose bins are powers of two; leave out rare bins.

    >>> _histogram([0, 0, 5, 15, 0])
    '4-7: 25 %  8-15: 75 %'
    """
    total = sum(bins) or 1
    shares = [(f"{2**i}-{2 ** (i + 1) - 1}", 100 * count / total) for i, count in enumerate(bins)]
    return "  ".join(f"{name}: {share:.0f} %" for name, share in shares if share >= 0.5)
