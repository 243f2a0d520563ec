"""Options, model or records -> the tokenizers of a run: given, the model's, or learned."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from unmask.checkpoint.folder import TARGET, Folder
from unmask.checkpoint.state import checkpoints
from unmask.checkpoint.vocabulary import load_tokenizer
from unmask.system.errors import SettingsError
from unmask.tasks.base import Task
from unmask.text.count import count_words
from unmask.text.learn import LearnSettings, learn
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.tokenizer_files import read_tokenizer
from unmask.text.tokens import Tokenizers
from unmask.train.recipe import TokenizerSettings
from unmask.train.site import Site

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class GivenVocabularies:
    """Vocabularies that the user gives: one for both languages, or one for each."""

    vocabulary: Path | Tokenizers | None = None
    target: Path | None = None

    def tokens(self, start: Folder | None) -> Tokenizers | None:
        """Load the tokenizers of these vocabularies; None if there are none."""
        source, target = self.vocabulary, self.target
        if source is None:
            if target is not None:
                raise SettingsError(
                    "--target-vocabulary needs --vocabulary. Give both, or neither."
                )
            return None
        if start is not None:
            raise SettingsError(
                "--vocabulary and --model cannot be combined, because the model has its own "
                "vocabulary. Give only one of them."
            )
        if isinstance(source, Tokenizers):
            return source
        first = load_tokenizer(source)
        return Tokenizers(first, 0, first if target is None else load_tokenizer(target))


def find_tokens(
    task: Task[Any, Any],
    records: Sequence[Any],
    settings: TokenizerSettings,
    site: Site,
    vocabularies: GivenVocabularies,
    start: Folder | None,
) -> Tokenizers:
    """Find the tokenizers of a run: the model's, the user's, a resumed run's, or learned ones."""
    if start is not None and not task.decodes:
        return Tokenizers(start.needed_tokenizer(), 0)

    def progress(done: int, total: int) -> None:
        site.console.progress("learning a vocabulary", "tokens", done, total)

    # A resumed run must have the very vocabulary that its weights were trained with.
    tokenizers = vocabularies.tokens(start) or stored_tokenizers(site)
    tokenizers = tokenizers or learn_tokenizers(task, records, settings, start, progress)
    # By identity: a shared vocabulary is reported once.
    sides = {
        id(tokenizer): tokenizer
        for tokenizer in (tokenizers.source, tokenizers.target)
        if tokenizer is not None
    }
    sizes = [f"{len(tokenizer.vocabulary):,}" for tokenizer in sides.values()]
    shared = ", shared by source and target" if task.decodes and len(sizes) == 1 else ""
    site.folder.say(f"vocabulary: {' and '.join(sizes)} tokens{shared}")
    return tokenizers


def stored_tokenizers(site: Site) -> Tokenizers | None:
    """Read the tokenizers of a resumed run from its newest checkpoint; None without one."""
    if site.stored is None or not (folders := checkpoints(site.folder.checkpoints)):
        return None
    source = read_tokenizer(folders[0])
    target = folders[0] / TARGET
    return Tokenizers(source, 0, read_tokenizer(target) if target.is_dir() else source)


def learn_tokenizers(
    task: Task[Any, Any],
    records: Sequence[Any],
    settings: TokenizerSettings,
    start: Folder | None = None,
    progress: Progress | None = None,
) -> Tokenizers:
    """Learn vocabularies from the records; if a model is given, only the target language's."""
    sources, targets = task.texts(records)
    if start is not None:
        if settings.joint:
            raise SettingsError(
                "tokenizer.joint: the given model has its own vocabulary, which the target "
                "language cannot share. Set tokenizer.joint=false."
            )
        return Tokenizers(
            start.needed_tokenizer(), 0, _learn_tokenizer(targets, settings, progress)
        )
    if settings.joint or not task.decodes:
        both = _learn_tokenizer(chain(sources, targets), settings, progress)
        return Tokenizers(both, 0, both if task.decodes else None)
    source = _learn_tokenizer(sources, settings, progress)
    return Tokenizers(source, 0, _learn_tokenizer(targets, settings, progress))


def _learn_tokenizer(
    texts: Iterable[str], settings: TokenizerSettings, progress: Progress | None
) -> Tokenizer:
    casing = Casing(lowercase=not settings.cased, strip_accents=not settings.accents)
    words = count_words(texts, casing)
    return Tokenizer(learn(words, LearnSettings(size=settings.size), progress=progress), casing)
