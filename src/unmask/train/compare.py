"""Pairs + a recipe -> a run that learns to translate; and several of them side by side.

A comparison is a TOML file: the data once, and variants, each a recipe with some settings replaced.
Variants that are finished are not trained again, one that was stopped goes on.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Unpack

import torch
from pydantic import Field, model_validator

from unmask.checkpoint.fetch import locate
from unmask.checkpoint.folder import load_folder
from unmask.checkpoint.vocabulary import load_tokenizer
from unmask.errors import SettingsError
from unmask.settings import Settings, build, read_toml
from unmask.tasks.translate import Tokenizers
from unmask.train.curves import Chart, Line, column
from unmask.train.finetune import How
from unmask.train.pairs import Files, PairData, read_data
from unmask.train.run import MODEL, RECIPE, read_metrics
from unmask.train.translation import Translation, train_translation
from unmask.train.tuning import compose_tuning

FIGURE = "compare.svg"
Learning = Callable[[int, int], None]


def train_files(
    data: PairData,
    out: Path,
    recipe: str,
    changes: Sequence[str] = (),
    *,
    model: str | Path | None = None,
    vocabulary: Path | None = None,
    target_vocabulary: Path | None = None,
    threads: int | None = None,
    learning: Learning | None = None,
    **how: Unpack[How],
) -> dict[str, Any]:
    """Train a translator on pairs; on a given encoder, or with given words, if there are some."""
    table = compose_tuning(recipe, changes, kind="translate", what="recipe")
    if model is not None:
        table.pop("model", None)  # the model has a shape
    settings = build(Translation, table, where="recipe")
    words = _words(vocabulary, target_vocabulary, model)
    if threads:
        torch.set_num_threads(threads)
    encoder = None if model is None else load_folder(locate(model))
    return train_translation(
        data, out, settings, encoder=encoder, tokenizers=words, learning=learning, **how
    )


def _words(source: Path | None, target: Path | None, model: Any) -> Tokenizers | None:
    """Given words: of both sides together, or of each."""
    if source is None:
        if target is not None:
            raise SettingsError("--target-vocabulary without --vocabulary: give both, or neither.")
        return None
    if model is not None:
        raise SettingsError("--vocabulary and --model: the model has words of its own. Give one.")
    first = load_tokenizer(source)
    return Tokenizers(first, first if target is None else load_tokenizer(target))


class Variant(Settings):
    """One of those that are compared."""

    name: Annotated[str, Field(pattern=r"^[\w][\w .,=-]*$")]  # of its line and its folder
    recipe: str
    set: list[str] = Field(default_factory=list)


class Comparison(Settings):
    """Several ways to learn the same."""

    out: str
    folder: str | None = None
    source: str | None = None
    target: str | None = None
    train: list[str] = Field(default_factory=list)
    dev: list[str] = Field(default_factory=list)
    set: list[str] = Field(default_factory=list)  # for all variants
    variants: list[Variant]

    @model_validator(mode="after")
    def _names_differ(self) -> "Comparison":
        names = [variant.name for variant in self.variants]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"variants are called {names!r}; need one at least, and other names.")
        return self

    @property
    def files(self) -> Files:
        """Where the pairs are."""
        return Files(
            Path(self.folder) if self.folder else None,
            self.source,
            self.target,
            [Path(path) for path in self.train],
            [Path(path) for path in self.dev],
        )


def compare(
    path: Path,
    *,
    threads: int | None = None,
    learning: Learning | None = None,
    **how: Unpack[How],
) -> list[dict[str, Any]]:
    """Train every variant, draw their curves in one figure, and return a row for each."""
    asked = build(Comparison, read_toml(path), where=str(path))
    out, data = Path(asked.out), read_data(asked.files)
    notice = how.get("notice", print)
    for variant in asked.variants:
        place = out / variant.name
        if (place / MODEL).exists():
            notice(f"{variant.name}: is there already")
            continue
        changes = [*asked.set, *variant.set]
        notice(f"{variant.name}: {variant.recipe} {' '.join(changes)}".rstrip())
        begun = {**how, "resume": (place / RECIPE).exists(), "overwrite": False}
        train_files(
            data,
            place,
            variant.recipe,
            changes,
            threads=threads,
            learning=learning,
            **begun,  # type: ignore[arg-type]
        )
    (out / FIGURE).write_text(drawn({v.name: out / v.name for v in asked.variants}), "utf-8")
    return [row_of(variant.name, out / variant.name) for variant in asked.variants]


def row_of(name: str, run: Path) -> dict[str, Any]:
    """What a run came to: its best held-out score, and what it took."""
    metrics = read_metrics(run)
    held = [entry for entry in metrics if entry["kind"] == "eval" and entry["step"] > 0]
    trained = [entry for entry in metrics if entry["kind"] == "train"]
    best = max(held, key=lambda entry: float(entry["bleu"]))
    return {
        "variant": name,
        "bleu": best["bleu"],
        "chrf": best["chrf"],
        "perplexity": best["perplexity"],
        "step": best["step"],
        "minutes": trained[-1]["seconds"] / 60,
    }


def drawn(runs: dict[str, Path]) -> str:
    """The held-out BLEU and loss of runs over what they have read, in one figure.

    Not over steps, which may be of any size.
    """
    held = {
        name: [entry for entry in read_metrics(run) if entry["kind"] == "eval"]
        for name, run in runs.items()
    }
    charts = [
        Chart(
            title,
            [
                Line(name, [e["tokens"] / 1e6 for e in own], [e[key] for e in own])
                for name, own in held.items()
            ],
            across="million words learned from",
        )
        for title, key in (("Held-out BLEU", "bleu"), ("Held-out loss of a word", "loss"))
    ]
    return column(charts)
