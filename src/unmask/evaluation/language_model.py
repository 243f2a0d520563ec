"""Network and held-out documents -> losses and accuracies, beside simple baselines.

15 % of the tokens are masked, whatever the masking rate in training. The examples have a seed of
their own, so they are the same for every run on a corpus. The baselines are what knowing nothing
(ln V) or knowing only token frequencies (unigram) would reach.
"""

import math
from collections import Counter
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data import counter_rng
from unmask.data.batch import Batch
from unmask.data.corpus.corpus import Corpus
from unmask.data.corpus.stream import Cursor, Stream
from unmask.model.network import Network, PlainRows
from unmask.model.shape import TOKENS
from unmask.objectives.base import CORRECT, Companions, Objective, Sums
from unmask.system.distributed import Processes
from unmask.text.vocabulary import CONTINUATION

SEED = 20181011  # of the evaluation examples of every run, so that runs can be compared


class MaskedToken(TypedDict):
    """A masked token in its context, with the model's best predictions for it."""

    text: str
    truth: str
    predictions: list[tuple[str, float]]  # pairs are lists in JSON


class Evaluation:
    """Held-out batches, and the scores of a network on them."""

    def __init__(
        self,
        stream: Stream,
        objective: Objective,
        processes: Processes,
        *,
        tokens: int,
        micro_rows: int,
    ) -> None:
        self.terms, self.processes = objective.describe(), processes
        # Always the first rows of epoch 0: the same examples in every evaluation.
        rows = min(max(tokens // stream.length, 1), len(stream.epoch(0)))
        cursors = [Cursor(0, row) for row in range(rows)]
        groups = [cursors[i : i + micro_rows] for i in range(0, rows, micro_rows)]
        own_groups = groups[processes.rank :: processes.world]
        self.batches = [
            objective.prepare(stream.batch(group), counter_rng.key(SEED), 0.0)
            for group in own_groups
        ]
        self.tokens = rows * stream.length

    def __call__(
        self, network: Network, objective: Objective, companions: Companions
    ) -> dict[str, float]:
        """Return mean loss and accuracy of each term: {"mlm": ..., "mlm_accuracy": ...}."""
        sums: Counter[str] = Counter()
        with torch.no_grad():
            for batch in self.batches:
                batch_sums: Sums = objective(network, batch.to(self.processes.device), companions)
                sums.update({name: float(value) for name, value in batch_sums.items()})
                sums.update({f"count {name}": count for name, count in batch.counts.items()})
        scores: dict[str, float] = {}
        for term in self.terms:
            # A process without batches has no sums of its own, but takes part in each total.
            names = (term.name, term.name + CORRECT, f"count {term.name}")
            values = [*(sums[name] for name in names), float(names[1] in sums)]
            loss, correct, count, has_accuracy = self.processes.total(values)
            scores[term.name] = loss / max(count, 1.0)
            if has_accuracy:
                scores[f"{term.name}_accuracy"] = correct / max(count, 1.0)
        return scores

    def answers(self) -> NDArray[np.int64]:
        """Return the labels of the masked tokens in this process's batches."""
        name = self.terms[0].tokens
        labels = [] if name is None else [batch.labels[name].numpy() for batch in self.batches]
        return np.concatenate(labels) if labels else np.zeros(0, dtype=np.int64)


def baselines(
    corpus: Corpus, answers: NDArray[np.int64], processes: Processes, *, choices: int | None
) -> dict[str, float]:
    """Compute the scores of a model that knows nothing, and of one that knows token frequencies.

    The second only where tokens are predicted. Its frequencies are counted on the whole corpus,
    held-out text included.
    """
    scores = {"ln_v": math.log(choices)} if choices else {}
    # Summed first: a process without labels must still take part in the total below.
    if not processes.total([len(answers)])[0]:
        return scores
    frequencies = corpus.frequencies
    loss = float(-np.log(frequencies[answers]).sum())
    correct = float((answers == frequencies.argmax()).sum())
    loss, correct, count = processes.total([loss, correct, len(answers)])
    return {**scores, "unigram_loss": loss / count, "unigram_accuracy": correct / count}


class MaskedTokens:
    """A few held-out passages with one masked token each, predicted at every evaluation."""

    def __init__(self, evaluation: Evaluation, corpus: Corpus, count: int = 6) -> None:
        self.tokenizer, self.term = corpus.tokenizer, evaluation.terms[0]
        cases = map(self._case, evaluation.batches[:40])
        self.cases = [case for case in cases if case is not None][:count]

    def __call__(self, network: Network, device: torch.device) -> list[MaskedToken]:
        """Return the three best predictions for each masked token."""
        predictions: list[MaskedToken] = []
        vocabulary = self.tokenizer.vocabulary.tokens
        for ids, place, truth in self.cases:
            tokens = torch.tensor([ids], device=device)
            index = torch.arange(len(ids), device=device)[None]
            zeros = torch.zeros_like(tokens)
            with torch.no_grad():
                hidden = network.states_for(TOKENS, PlainRows(tokens, zeros, index, zeros))
                probabilities = network.token_scores(hidden[:, place]).softmax(dim=-1)[0]
            top = probabilities.topk(3)
            pairs = zip(top.indices, top.values, strict=True)
            best_tokens = [
                (vocabulary[int(id)], round(float(probability), 4)) for id, probability in pairs
            ]
            shown = self.tokenizer.decode(ids[1:-1], keep_special=True)
            predictions.append(
                {"text": shown, "truth": vocabulary[truth], "predictions": best_tokens}
            )
        return predictions

    def _case(self, batch: Batch) -> tuple[list[int], int, int] | None:
        """Cut out a passage around the first suitable masked token of a batch; None without one.

        Its other masked tokens are shown. It holds whole words of a single text, so that people can
        read it.
        """
        vocabulary = self.tokenizer.vocabulary
        width = batch.tokens.shape[1]
        if self.term.places is None or self.term.tokens is None:
            return None
        places: list[int] = batch.labels[self.term.places].tolist()
        answers: list[int] = batch.labels[self.term.tokens].tolist()
        originals = dict(zip(places, answers, strict=True))
        tokens: list[int] = batch.tokens.flatten().tolist()
        for place, truth in originals.items():
            word = vocabulary.tokens[truth]
            row = place // width * width  # first token of the row: the passage must not leave it
            begin, end = place - 12, place + 10
            if tokens[place] != vocabulary.mask or begin <= row or end >= row + width:
                continue
            passage = [originals.get(i, tokens[i]) for i in range(begin, end)]
            passage[place - begin] = vocabulary.mask
            is_whole_word = word.isalpha() and not any(
                vocabulary.tokens[passage[i]].startswith(CONTINUATION)
                for i in (0, place - begin + 1)
            )
            if is_whole_word and not {vocabulary.cls, vocabulary.sep, vocabulary.pad} & set(
                passage
            ):
                return [vocabulary.cls, *passage, vocabulary.sep], place - begin + 1, truth
        return None
