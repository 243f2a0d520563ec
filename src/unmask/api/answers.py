"""Models and data -> answers and scores: get, load, evaluate, predict, translate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.api.arguments import LoggingConsole, columns_of, opened, policy_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unmask.api.results import EvaluationResult
    from unmask.infer.model import Model


def get(name: str, *, out: str | Path | None = None) -> Path:
    """Download a model, verify it, and return its folder.

    Args:
        name: "minilm", or "hf:NAME" for a BERT of the Hugging Face hub, which needs
            `pip install 'unmask[hub]'`.
        out: The folder to write. Without it, the model goes into the cache, and `load` finds it by
            its name.

    Example:
        unmask.get("minilm")
    """
    from unmask.checkpoint.fetch import get

    return get(name, None if out is None else Path(out))


def load(model: str | Path, *, device: str = "cpu") -> Model:
    """Load a model from a folder, or by the name of a model that `get` has downloaded.

    Args:
        model: A model folder of unmask or Hugging Face, or a name such as "minilm".
        device: "cpu", "cuda", "cuda:1" or "mps". Only the CPU is tested.

    Example:
        model = unmask.load("minilm")
        model.embed(["the cat sat on the mat", "the dog sat"])  # [2, D]
        model.embed("the cat sat on the mat")  # [D]
    """
    loaded = opened(model)
    return loaded if device == "cpu" else loaded.to(device)


def evaluate(
    model: str | Path | Model,
    data: Any,
    *,
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    header: bool | None = None,
    on_bad: str = "stop",
) -> EvaluationResult:
    """Score a fine-tuned model on labelled data.

    Args:
        model: A loaded model, a model folder, or the name of a downloaded model.
        data: A file, a list of files, or rows: dictionaries, (text, label) pairs, a DataFrame, a
            `datasets.Dataset` or a pyarrow Table.
        text: The column of the text. Common names are recognised.
        second: The column of the second text of a pair, or of the translation.
        label: The column of the label.
        columns: The columns of other fields of the task, by field.
        header: Whether the first row of a CSV or TSV file names the columns. None detects it.
        on_bad: "stop" at a bad record, or "skip" it.

    Example:
        scores = unmask.evaluate("my-run/model", "dev.tsv")
        scores["accuracy"]
    """
    chosen, console = columns_of(text, second, label, columns, header), LoggingConsole()
    watcher = policy_of(on_bad, console)
    loaded = opened(model)
    from unmask.api.records import as_files
    from unmask.api.results import EvaluationResult
    from unmask.infer.predict import evaluate_file
    from unmask.tasks.results import plain

    with as_files(data, type(loaded.task).Ask, "data") as source:
        metrics, detail, answers = evaluate_file(loaded, source.paths, chosen, watcher, console.say)
        mistakes = [plain(mistake) for mistake in detail.mistakes]
        for mistake in mistakes:
            mistake["where"] = source.by_row(mistake["where"])
    return EvaluationResult(metrics, detail.table, detail.confusion, mistakes, list(answers))


def predict(
    model: str | Path | Model,
    data: Any,
    *,
    text: str | None = None,
    second: str | None = None,
    columns: Mapping[str, str] | None = None,
    header: bool | None = None,
    on_bad: str = "stop",
    truncate: bool = True,
) -> Any:
    """Answer texts or records with a fine-tuned model, whatever its task.

    A single string gives one answer, anything else gives a list with an answer per record.

    Args:
        model: A loaded model, a model folder, or the name of a downloaded model.
        data: A text; a list or generator of texts, pairs or dictionaries; a Series, DataFrame,
            array, `datasets.Dataset` or pyarrow Table; or a file as a `pathlib.Path`. A string is
            never a file name, so that texts from elsewhere cannot name files on this machine.
        text: The column of the text. Common names are recognised.
        second: The column of the second text of a pair.
        columns: The columns of other fields of the task, by field.
        header: Whether the first row of a CSV or TSV file names the columns. None detects it.
        on_bad: "stop" at a bad record, or "skip" it.
        truncate: Cut a text that is too long. False makes it an error.

    Example:
        answer = unmask.predict("my-run/model", "the cat sat on the mat")
        answer.label, answer.to_dict()
        answers = unmask.predict("my-run/model", pathlib.Path("texts.txt"))
    """
    from unmask.data.read.objects import refuse_file_name

    if isinstance(data, str):
        refuse_file_name(data, "data")
    chosen, console = columns_of(text, second, None, columns, header), LoggingConsole()
    watcher = policy_of(on_bad, console)
    loaded = opened(model)
    from unmask.api.records import records_of
    from unmask.infer.predict import read_records

    if isinstance(data, Path):
        records = read_records(loaded.task, data, chosen, watcher, console.say)
    else:
        single = [data] if isinstance(data, str) else data
        records = records_of(loaded.task, single, chosen, watcher)
    answers = list(loaded.predict(records, truncate=truncate))
    return answers[0] if isinstance(data, str) else answers


def translate(
    model: str | Path | Model,
    texts: Any,
    *,
    beam_size: int = 1,
    length_penalty: float = 1.0,
    max_length: int | None = None,
    sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    split: bool = True,
) -> str | list[str]:
    """Translate texts; a single string gives one translation.

    Args:
        model: A loaded model with a decoder, or its folder.
        texts: A text, or a list, generator, Series, array or column of texts; or a file with a text
            per line as a `pathlib.Path`.
        beam_size: The number of hypotheses that a beam search keeps; 1 is greedy.
        length_penalty: Scores are divided by the length to this power. Needs a beam search.
        max_length: The maximum length in tokens. None allows 10 more than twice the source.
        sample: Sample tokens instead of searching.
        temperature: The sampling temperature; values below 1 favour likely tokens.
        top_k: Sample from this many of the most likely tokens; 0 means all.
        top_p: Sample from the most likely tokens with this total probability.
        seed: The random seed for sampling.
        split: Translate a text that is too long in parts. False makes it an error.

    Example:
        unmask.translate("translator/model", "Ein Hund rennt.", beam_size=4)
    """
    if isinstance(texts, Path):
        from unmask.data.labelled.parallel import read_sources

        texts = (pair.source for pair in read_sources(texts))
    return opened(model).translate(
        texts,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_length=max_length,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        split=split,
    )
