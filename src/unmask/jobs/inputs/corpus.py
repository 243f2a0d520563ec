"""Corpus and recipe -> objective, micro-batches, and checks of both before training."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data import counter_rng
from unmask.data.batch import Batch
from unmask.data.corpus.corpus import Corpus
from unmask.data.corpus.examples import IS_NEXT, NOT_NEXT, refuse_too_few, split_documents
from unmask.data.corpus.stream import Cursor as Row
from unmask.data.corpus.stream import Stream
from unmask.objectives import OBJECTIVES
from unmask.objectives.base import Objective, TextStatistics
from unmask.system.errors import SettingsError, plural
from unmask.system.plugins import find_class
from unmask.system.settings import Settings
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.optim.schedules import Phase
from unmask.train.preflight import PreflightError
from unmask.train.recipe import Recipe
from unmask.train.sources import Cursor, LazyMicroBatch, PlannedStep

_MASKS, _DROPOUT = 201, 202  # one key per kind of draw, apart from all others
PAIRS = "pairs"  # the objective that is added if examples are sentence pairs
DUPLICATES = 0.2  # a larger fraction of repeated sentences is warned about
BALANCE = 0.05  # how far the fraction of negative pairs may be from one half
SAMPLE = 200  # packed rows that are checked


def objective_for(recipe: Recipe, vocabulary: Vocabulary) -> Objective:
    """Make the objective that the recipe names, joined by sentence pairs if examples have them."""
    assert recipe.objective is not None
    name, paired = recipe.objective.name, recipe.data.pairs != "off"
    main: Objective = find_class("objective", OBJECTIVES, name)(
        recipe.objective.settings, vocabulary
    )
    if main.needs_pairs and not paired:
        raise SettingsError(
            f'recipe [objective]: "{name}" needs sentence pairs, but data.pairs is "off". Set '
            'data.pairs="nsp" or "sop".'
        )
    if not paired or main.needs_pairs:
        return main  # without pairs, or with pairs that it judges itself
    pairs: Objective = find_class("objective", OBJECTIVES, PAIRS)(Settings(), vocabulary)
    return main.joined([pairs])


class CorpusStatistics(TextStatistics):
    """Token statistics of a corpus, for objectives that start from them."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Relative frequency of each token of the vocabulary, counted on first use.  [V]"""
        return self.corpus.frequencies


class CorpusSource:
    """The packed rows of a corpus as micro-batches, through all phases of a run."""

    def __init__(self, corpus: Corpus, recipe: Recipe, objective: Objective) -> None:
        self.corpus, self.recipe, self.objective = corpus, recipe, objective
        self.phases = recipe.schedule.phases
        documents, _ = split_documents(len(corpus.documents) - 1, recipe.data.held_out)
        refuse_too_few(corpus, documents, recipe.data)
        self.streams = [
            Stream(corpus, documents, recipe.data, recipe.seed, phase.length)
            for phase in self.phases
        ]

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps of the first phase in one pass over the corpus."""
        return len(self.streams[0].epoch(0)) / self.phases[0].rows

    def plan_step(self, cursor: Cursor, step: int, progress: float) -> PlannedStep:
        """Plan the micro-batches of a step, small enough for the CPU's cache."""
        number = self._phase_index(progress)
        phase, stream = self.phases[number], self.streams[number]
        # Rows of another length are other rows: each phase starts at the beginning of its stream.
        same_phase = cursor.get("phase", 0) == number
        position = Row(cursor.get("epoch", 0), cursor.get("row", 0)) if same_phase else Row()
        rows, next_row = stream.take(position, phase.rows)
        micro_batches, start = [], 0
        for index, size in enumerate(self._sizes(phase)):
            seed = counter_rng.key(self.recipe.seed, _DROPOUT, step, index) % 2**63
            group = rows[start : start + size]
            micro_batches.append(
                LazyMicroBatch(partial(self._batch, stream, group, seed, progress), seed)
            )
            start += size
        return micro_batches, {"phase": number, "epoch": next_row.epoch, "row": next_row.row}

    def sample(self, count: int) -> Batch:
        """Build a batch of the first rows, prepared as at the start of a run."""
        return self._batch(self.streams[0], self.first_rows(count), 0, 0.0)

    def first_rows(self, count: int) -> list[Row]:
        """Return the cursors of the first `count` rows, or of all if there are fewer."""
        return [Row(0, row) for row in range(min(count, len(self.streams[0].epoch(0))))]

    def _batch(self, stream: Stream, rows: list[Row], seed: int, progress: float) -> Batch:
        batch = replace(stream.batch(rows), seed=seed)
        return self.objective.prepare(batch, counter_rng.key(self.recipe.seed, _MASKS), progress)

    def _sizes(self, phase: Phase) -> list[int]:
        """Return the rows of each micro-batch; their number is a multiple of loop.micro_batches."""
        max_rows = max(self.recipe.loop.micro_batch_tokens // phase.length, 1)
        unit = self.recipe.loop.micro_batches
        if phase.rows < unit:
            raise SettingsError(
                f"recipe [[schedule.phases]]: a step has {phase.rows} "
                f"{plural('sequence', phase.rows)}, but {unit} "
                f"micro-batches. Raise batch_tokens to {unit * phase.length} or more."
            )
        # Equal micro-batches if possible; otherwise as even as they can be.
        fits = [rows for rows in range(1, max_rows + 1) if phase.rows % (rows * unit) == 0]
        if fits:
            return [max(fits)] * (phase.rows // max(fits))
        # Small enough for `most` rows each, but never more micro-batches than rows.
        count = math.ceil(math.ceil(phase.rows / max_rows) / unit) * unit
        count = min(count, phase.rows // unit * unit)
        return [len(part) for part in np.array_split(np.arange(phase.rows), count)]

    def _phase_index(self, progress: float) -> int:
        """Return the number of the phase at this progress."""
        for number, end in enumerate(accumulate(phase.share for phase in self.phases)):
            if progress < end - 1e-9:  # sums of shares are rounded
                return number
        return len(self.phases) - 1


def check_corpus(source: CorpusSource, say: Callable[[str], None]) -> None:
    """Check a corpus before the first step; warn, or refuse what cannot be learned from."""
    duplicate_share = source.corpus.statistics.duplicate_share
    if duplicate_share > DUPLICATES:
        say(
            f"warning: about {duplicate_share:.0%} of the sentences are duplicates, which the "
            "model will memorise. Remove repeated documents"
        )
    if source.recipe.data.pairs != "off":
        _check_pairs(source)
    _check_masks(source, say)


def _check_pairs(source: CorpusSource) -> None:
    labels = source.streams[0].epoch(0).plan.label
    positives, negatives = np.count_nonzero(labels == IS_NEXT), np.count_nonzero(labels == NOT_NEXT)
    if not positives + negatives:
        raise PreflightError(
            f"preflight: {source.corpus.path}: no sentence pairs, because every document has a "
            "single sentence. Keep the sentences of a document together, or train without pairs: "
            '--set data.pairs="off"'
        )
    share = negatives / (positives + negatives)
    # Four standard deviations of a fair coin: a small corpus may be that far off by chance.
    margin = max(BALANCE, 4 * 0.5 / math.sqrt(positives + negatives))
    if abs(share - 0.5) > margin:
        raise PreflightError(
            f"preflight: {share:.1%} of the sentence pairs are negative; need about half. The "
            "corpus may have too few documents, or identical ones. Check it."
        )


def _check_masks(source: CorpusSource, say: Callable[[str], None]) -> None:
    # Prepared like a training batch, and compared with the same rows before masking.
    vocabulary = source.corpus.tokenizer.vocabulary
    before = source.streams[0].batch(source.first_rows(SAMPLE))
    batch = source.objective.prepare(before, 0, 0.0)
    name = source.objective.describe()[0].places
    if name is None:
        return
    positions = batch.labels[name]
    specials = torch.tensor([vocabulary.ids[token] for token in SPECIALS])
    is_special = torch.isin(before.tokens, specials)
    if is_special.flatten()[positions].any():
        raise PreflightError(
            "preflight: internal error: special tokens are masked. Please report this."
        )
    inputs = batch.tokens.flatten()[positions]
    predicted_share = len(positions) / max(int((~is_special).sum()), 1)
    masked_share = int((inputs == vocabulary.mask).sum()) / max(len(positions), 1)
    say(
        f"preflight: {predicted_share:.1%} of the tokens are predicted, {masked_share:.0%} of "
        "those are replaced by [MASK]"
    )
