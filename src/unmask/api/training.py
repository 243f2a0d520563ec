"""Text and labelled data -> models: learn_vocabulary, prepare, pretrain, finetune."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.api.answers import load
from unmask.api.arguments import LoggingConsole, changes_of, check_run, paths_of, run_options
from unmask.system.errors import SettingsError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unmask.api.results import LearnedVocabulary, PreparedCorpus
    from unmask.infer.model import Model

ENGINES = ("processes", "ray")


def learn_vocabulary(
    files: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    size: int,
    criterion: str = "frequency",
    cased: bool = False,
    coverage: float = 0.9999,
    min_count: int = 2,
    column: str | None = None,
    workers: int = 1,
) -> LearnedVocabulary:
    """Learn a WordPiece vocabulary from text files and write it as a folder.

    Args:
        files: Text files: .txt, .jsonl, .csv, .tsv or .parquet.
        out: The folder to write: new, or empty.
        size: The number of tokens.
        criterion: "frequency" merges the most frequent pair, "likelihood" the pair that raises the
            likelihood of the text most.
        cased: Keep capitals and accents.
        coverage: The share of the characters that the alphabet covers.
        min_count: Pairs that are rarer than this are not merged.
        column: The column of a table that has the text.
        workers: Processes that count words. A script that asks for more than one keeps its own
            work under `if __name__ == "__main__":`, because each process imports the script again.

    Example:
        report = unmask.learn_vocabulary("texts.txt", "vocabulary", size=200)
        report.tokens_per_word
    """
    from unmask.data.read.texts import read_texts
    from unmask.system.disk import check_output_folder
    from unmask.system.settings import validate
    from unmask.text import CRITERIA

    if criterion not in CRITERIA:
        raise SettingsError(unknown_name("criterion", criterion, CRITERIA))
    paths, folder, console = paths_of(files), Path(out), LoggingConsole()
    check_output_folder(folder, renamed=True)
    for path in paths:
        read_texts(path, column=column)  # refuses a wrong path before numpy is imported
    from unmask.checkpoint.vocabulary import learn_folder
    from unmask.text.learn import LearnSettings

    table: dict[str, object] = {"size": size, "criterion": criterion, "coverage": coverage}
    report = learn_folder(
        paths,
        folder,
        validate(LearnSettings, table | {"min_count": min_count}, where="learn_vocabulary"),
        cased=cased,
        column=column,
        workers=workers,
        learning=lambda done, total: console.progress("learning tokens", "tokens", done, total),
    )
    from unmask.api.results import LearnedVocabulary

    return LearnedVocabulary(folder, **vars(report))


def prepare(
    files: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: str | Path,
    column: str | None = None,
    lines: str = "auto",
    words: str = "pieces",
    on_bad: str = "stop",
    workers: int = 1,
    task_id: int = 0,
    num_tasks: int = 1,
    engine: str = "processes",
) -> PreparedCorpus | None:
    """Turn text files into a corpus for pre-training; call it again to resume a killed job.

    Returns None while other tasks still have a share of the work to do.

    Args:
        files: Text files: .txt, .jsonl, .csv, .tsv or .parquet.
        out: The corpus folder: new, or one to resume.
        tokenizer: A folder with a vocabulary, or a model.
        column: The column of a table that has the text.
        lines: What a line of a .txt file is: "sentences", "documents" or "auto".
        words: What whole-word masking takes for a word: "pieces" joins tokens that begin with ##,
            "spaces" takes what is between spaces.
        on_bad: "stop" at a bad record, or "skip" it and list it in skipped.jsonl.
        workers: Processes. A script that asks for more than one keeps its own work under
            `if __name__ == "__main__":`, because each process imports the script again.
        task_id: Which share of the work to do, from 0, if several machines share a disk.
        num_tasks: How many shares there are.
        engine: "processes", or "ray" for a Ray cluster (`pip install 'unmask[ray]'`).

    Example:
        corpus = unmask.prepare("texts.txt", "corpus", tokenizer="vocabulary")
        corpus.tokens
    """
    from unmask.checkpoint.fetch import locate
    from unmask.checkpoint.vocabulary import load_tokenizer
    from unmask.data.corpus import prepare as job
    from unmask.data.read.lines import file_format
    from unmask.system.settings import validate

    _check_engine(engine, shared=task_id > 0 or workers > 1)
    paths, folder, console = paths_of(files), Path(out), LoggingConsole()
    table: dict[str, object] = {"column": column, "lines": lines, "words": words}
    settings = validate(job.PrepareSettings, table | {"on_bad": on_bad}, where="prepare")
    job.check_corpus_folder(folder)
    for path in paths:
        file_format(path)  # refuses any wrong path before the first file is read
    made_by = load_tokenizer(locate(tokenizer))
    if engine == "ray":
        from unmask.data.corpus.ray import prepare_on_ray

        return _prepared(folder, prepare_on_ray(paths, made_by, folder, settings, tasks=num_tasks))
    manifest = job.prepare(
        paths,
        made_by,
        folder,
        settings,
        task=job.PrepareTask(number=task_id, tasks=num_tasks),
        workers=workers,
        progress=lambda done, total: console.progress("preparing", "bytes", done, total),
        notice=console.say,
    )
    return _prepared(folder, manifest)


def _check_engine(engine: str, *, shared: bool) -> None:
    """Refuse an unknown engine, and to tell Ray who does which share of the work."""
    if engine not in ENGINES:
        raise SettingsError(unknown_name("engine", engine, ENGINES))
    if engine == "ray" and shared:
        raise SettingsError("engine 'ray': Ray decides who works; leave out task_id and workers.")


def _prepared(folder: Path, manifest: Mapping[str, Any] | None) -> PreparedCorpus | None:
    """Return the counts of a finished corpus."""
    if manifest is None:
        return None
    from unmask.api.results import PreparedCorpus

    statistics, records = manifest["statistics"], manifest["records"]
    counts = {name: statistics[name] for name in ("documents", "sentences", "tokens", "unknown")}
    return PreparedCorpus(
        folder,
        **counts,
        read=records["read"],
        skipped=records["skipped"],
        blank=records["blank"],
    )


def pretrain(
    corpus: str | Path,
    out: str | Path,
    *,
    recipe: str | Path | None = None,
    size: str | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    warmup: float | None = None,
    pairs: str | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    shard: bool = False,
    tensorboard: bool = False,
    preflight: bool = True,
    threads: int | None = None,
) -> Model:
    """Pre-train a BERT on a prepared corpus and load the result, which is in `out/model`.

    Args:
        corpus: A folder that `prepare` has finished.
        out: The run's folder.
        recipe: The name of a recipe, or a TOML file. None is "bert" or, with `minutes`, "budget".
        size: "tiny", "mini", "small", "medium", "base", "large" or "auto".
        steps: The number of steps.
        minutes: A time limit; the learning rate ends with it.
        max_length: Train in one phase with sequences of this many tokens.
        batch_size: The batch size in sequences of full length.
        batch_tokens: The batch size in tokens.
        warmup: Warm-up, as a fraction of the run.
        pairs: "nsp" for next sentences, "sop" for sentence order, or "off".
        learning_rate: The peak learning rate.
        seed: The random seed.
        settings: Any other settings by name, such as {"data.held_out": 10}; they win over the
            arguments above.
        resume: Continue the run in `out`.
        overwrite: Delete the run in `out` and start over.
        shard: Shard the weights across the processes of torchrun (FSDP2).
        tensorboard: Also log to `out/tensorboard` (`pip install 'unmask[tensorboard]'`).
        preflight: Check the set-up before the first step.
        threads: CPU threads; None uses all cores.

    Example:
        model = unmask.pretrain(
            "corpus",
            "run",
            size="tiny",
            steps=2,
            max_length=16,
            batch_tokens=64,
            settings={"data.held_out": 5, "evaluate.times": 1},
        )
        model.fill("the [MASK] sat")
    """
    if steps is not None and minutes is not None:
        raise SettingsError("steps and minutes both set the length of the run. Give one of them.")
    if batch_size is not None and batch_tokens is not None:
        raise SettingsError("batch_size and batch_tokens both set the batch size. Give one.")
    folder = check_run(out, resume=resume, overwrite=overwrite)
    flags: dict[str, object] = {"schedule.steps": steps, "schedule.minutes": minutes}
    flags |= {"model.size": size, "schedule.warmup": warmup, "data.pairs": pairs, "seed": seed}
    flags |= {"optimizer.learning_rate": learning_rate}
    phase = {"length": max_length, "batch_size": batch_size, "batch_tokens": batch_tokens}
    from unmask.jobs.pretrain_recipe import pretrain_recipe

    console = LoggingConsole()
    composed = pretrain_recipe(
        Path(corpus),
        None if recipe is None else str(recipe),
        changes_of(flags, settings),
        {name: value for name, value in phase.items() if value is not None},
        folder,
        resume=resume,
        shard=shard,
        console=console,
    )
    from unmask.jobs.pretrain import Pretrain
    from unmask.train.run import Run

    options = run_options(resume, overwrite, shard, tensorboard, preflight, threads)
    return load(Run(Pretrain(Path(corpus)), composed, folder, console, options).go().model)
