"""Is this run sane? What can be known before the first step, checked and said.

vocabulary and config    duplicates    balance of pairs    what is hidden
the loss of an untrained network, near ln V    one batch learned by heart
"""

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unmask.data.corpus import Corpus
from unmask.data.examples import DIFFERS, FOLLOWS
from unmask.data.stream import Cursor
from unmask.errors import UserError
from unmask.model.network import Network
from unmask.objectives.base import OnePass
from unmask.text.vocabulary import SPECIALS
from unmask.train.evaluate import Baselines

if TYPE_CHECKING:
    from unmask.train.pretrain import CorpusSource

DUPLICATES = 0.2  # a larger share of repeated sentences is worth a warning
BALANCE = 0.05  # farther from half of the pairs, something is wrong
SAMPLE = 200  # rows that are looked at
HEART_STEPS, HEART_ROWS = 30, 4


class PreflightError(UserError):
    """A run that cannot go well was not begun."""


def preflight(
    network: Network,
    objective: OnePass,
    source: "CorpusSource",
    corpus: Corpus,
    plain: Baselines | None,
    say: Callable[[str], None],
) -> None:
    """Check everything that can be checked without training; refuse what cannot go well."""
    _vocabulary(network, corpus)
    share = corpus.statistics.duplicate_share
    if share > DUPLICATES:
        say(
            f"warning: about {share:.0%} of the sentences have occurred before; the model will "
            "learn them by heart. Remove repeated documents"
        )
    stream = source.streams[0]
    rows = [Cursor(0, row) for row in range(min(SAMPLE, len(stream.epoch(0))))]
    raw = stream.batch(rows)
    batch = objective.prepare(raw, 0)
    _pairs(stream.epoch(0).plan.label, source, corpus)
    hidden = _hidden(raw.tokens.numpy(), batch, corpus)
    small = objective.prepare(stream.batch(rows[:HEART_ROWS]), 0)
    first, last = _by_heart(network, objective, small)
    expected = math.log(objective.readers[0].choices)
    usual = [expected, *([plain.unigram_loss] if plain and plain.unigram_loss else [])]
    if not 0.75 * min(usual) <= first <= 1.25 * expected:
        raise PreflightError(
            f"preflight: an untrained network has a loss of {first:.2f}; need about ln V = "
            f"{expected:.2f}. Check model.init_std and the weights it starts from."
        )
    if not last < 0.7 * first:
        raise PreflightError(
            f"preflight: {HEART_STEPS} steps on one batch lowered its loss only from {first:.2f} "
            f"to {last:.2f}; need less than {0.7 * first:.2f}: it cannot learn. Check the model "
            "settings; --no-preflight goes on all the same."
        )
    known = f", unigram {plain.unigram_loss:.2f}" if plain and plain.unigram_loss else ""
    say(
        f"preflight: {hidden}untrained loss {first:.2f} (ln V {expected:.2f}{known}); one batch "
        f"learned by heart to {last:.2f}"
    )


def _vocabulary(network: Network, corpus: Corpus) -> None:
    size, highest = len(corpus.tokenizer.vocabulary), 0
    for shard in corpus.shards[:3]:
        highest = max(highest, int(shard.max()) if len(shard) else 0)
    if network.config.vocab_size < size or highest >= network.config.vocab_size:
        raise PreflightError(
            f"preflight: ids up to {max(size - 1, highest):,} and a network of "
            f"{network.config.vocab_size:,} tokens; need one for each. Fix model.vocab_size."
        )


def _pairs(labels: Any, source: "CorpusSource", corpus: Corpus) -> None:
    if source.recipe.examples.pairs == "off":
        return
    yes, no = int((labels == FOLLOWS).sum()), int((labels == DIFFERS).sum())
    if not yes + no:
        raise PreflightError(
            f"preflight: {corpus.path}: not one pair; every document has a single sentence. Keep "
            'sentences of a document together, or train without pairs: --set examples.pairs="off"'
        )
    share = no / (yes + no)
    margin = max(BALANCE, 4 * 0.5 / math.sqrt(yes + no))
    if abs(share - 0.5) > margin:
        raise PreflightError(
            f"preflight: {share:.1%} of the pairs are wrong ones; need half. Few or equal "
            "documents do that: look at the corpus."
        )


def _hidden(before: Any, batch: Any, corpus: Corpus) -> str:
    vocabulary = corpus.tokenizer.vocabulary
    special = np.isin(before, [vocabulary.ids[token] for token in SPECIALS])
    if "mlm_places" not in batch.labels:
        return ""
    places = batch.labels["mlm_places"].numpy()
    if special.ravel()[places].any():
        raise PreflightError("preflight: special tokens are hidden; a fault of ours, tell us.")
    shown = batch.tokens.numpy().ravel()[places]
    rate = len(places) / max(int((~special).sum()), 1)
    masked = float((shown == vocabulary.mask).mean()) if len(places) else 0.0
    return f"{rate:.1%} of the tokens hidden, {masked:.0%} of those as [MASK]; "


def _by_heart(network: Network, objective: OnePass, batch: Any) -> tuple[float, float]:
    """The loss of one small batch before and after some steps on a copy of the network."""
    learner = copy.deepcopy(network).cpu().eval()  # no dropout: only learning is of interest
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
    term, losses = objective.readers[0].term, []
    for _ in range(HEART_STEPS + 1):
        found = objective(learner, batch)
        loss = found[term] / max(batch.counts[term], 1)
        losses.append(float(loss.detach()))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return losses[0], losses[-1]
