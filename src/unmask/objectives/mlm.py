"""Masked language modelling: mask some tokens and predict them (BERT, section 3.1).

    tokens -> seen, answers    `corrupt`, when the batch is made
    hidden -> logits -> loss   `MaskedLM`, when the batch is used

Of the ordinary tokens of a text, 15 % are chosen, in a random order until there are enough; of
the chosen, 80 % are shown as [MASK], 10 % as a random token of the whole vocabulary, 10 % as they
are. With whole words, a word is chosen and treated as one.
"""

from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from unmask.data import counter_rng
from unmask.data.batch import Batch
from unmask.model.heads import TokenHead
from unmask.model.network import Network
from unmask.model.shape import TOKENS, Heads, Shape, TokensConfig
from unmask.objectives.base import CORRECT, PlaceObjective, Sums, Term, TextStatistics, per_record
from unmask.system.settings import Settings
from unmask.text.vocabulary import SPECIALS, Vocabulary

TERM, PLACES, ANSWERS = "mlm", "mlm_places", "mlm_tokens"
_CHOOSE, _EDGE, _DICE, _NOISE = range(100, 104)  # one key per kind of draw

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class MaskSettings(Settings):
    """How much to hide, and how."""

    rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # share of ordinary tokens to guess
    last_rate: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # at the end of the run
    mask_share: Share = 0.8  # of those, shown as [MASK] ...
    random_share: Share = 0.1  # ... or as a random token; the rest are shown as they are
    whole_words: bool = False
    frequencies: bool = False  # how frequent each token is need not be learned: guesses begin so

    @model_validator(mode="after")
    def _shares_fit(self) -> "MaskSettings":
        if self.mask_share + self.random_share > 1.0:
            raise ValueError("mask_share and random_share are shares of one whole; lower one.")
        return self


class MaskedLM(PlaceObjective):
    """Predict the masked tokens from their contexts, on both sides.

    Needs: labels PLACES, where in the batch they are, and ANSWERS, what they were.
    Relations: beside it `pairs` reads the same pass.
    """

    Config = MaskSettings
    reads_head = TOKENS
    config: MaskSettings

    def __init__(self, config: MaskSettings, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.choices = len(vocabulary)
        self.special = np.zeros(self.choices, dtype=bool)
        self.special[[vocabulary.ids[token] for token in SPECIALS]] = True

    def describe(self) -> list[Term]:
        """One term."""
        return [Term(TERM, "hidden tokens", self.choices, tokens=ANSWERS, places=PLACES)]

    def heads(self, shape: Shape) -> Heads:
        """A head that predicts tokens."""
        return {TOKENS: TokensConfig()}

    def standard(self) -> "MaskedLM":
        """At 15 %, one token at a time."""
        return MaskedLM(MaskSettings(), self.vocabulary)

    def rate(self, progress: float) -> float:
        """The share of masked tokens, on its way from `rate` to `last_rate`."""
        first, last = self.config.rate, self.config.last_rate
        return first if last is None else first + progress * (last - first)

    def begin(self, network: Network, statistics: TextStatistics) -> None:
        """Let every token be predicted as often as it occurs, whatever is around it."""
        if self.config.frequencies:
            with torch.no_grad():
                bias = network.head(TOKENS, TokenHead).bias
                bias.copy_(torch.from_numpy(np.log(statistics.frequencies)))

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Mask tokens; which ones depends on the example and the key alone."""
        seen, places = self.corrupt(batch, key, progress)
        masked = torch.from_numpy(batch.tokens.numpy().ravel()[places])
        return batch.with_inputs(tokens=torch.from_numpy(seen)).with_labels(
            len(places), TERM, **{PLACES: torch.from_numpy(places), ANSWERS: masked}
        )

    def corrupt(
        self, batch: Batch, root: int, progress: float = 0.0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What the model will see, and where it must predict.  -> [B, S], [N]"""
        tokens, text = batch.tokens.numpy(), batch.texts().numpy()
        ordinary = np.flatnonzero((text >= 0) & ~self.special[tokens])  # places in the flat batch
        assert batch.number is not None, "a batch to hide tokens in has numbers"
        number = batch.number.numpy().view(np.uint64)[text.ravel()[ordinary]]
        place = batch.index.numpy().ravel()[ordinary].astype(np.uint64)
        word = self._words(batch, ordinary)  # the first of each token's word, in `ordinary`
        where = number + place  # one counter for each token of each example
        chosen = self._chosen(text.ravel()[ordinary], word, where, root, self.rate(progress))

        dice = counter_rng.uniform(counter_rng.key(root, _DICE), where[word])
        hide = chosen & (dice < self.config.mask_share)
        swap = chosen & ~hide & (dice < self.config.mask_share + self.config.random_share)
        noise = counter_rng.below(
            self.choices, counter_rng.uniform(counter_rng.key(root, _NOISE), where)
        )
        seen = tokens.copy()
        seen.ravel()[ordinary[hide]] = self.vocabulary.mask
        seen.ravel()[ordinary[swap]] = noise[swap]
        return seen, ordinary[chosen]

    def places(self, batch: Batch) -> Tensor:
        """Where tokens are masked.  -> [N]"""
        return batch.labels[PLACES]

    def read(self, network: Network, states: Tensor, batch: Batch, *, each: bool = False) -> Sums:
        """Score the masked places.  states [N, D]"""
        answers = batch.labels[ANSWERS]  # [N]
        if network.training and not each:
            return {TERM: network.token_loss(states, answers)}
        scores = network.token_scores(states)  # [N, V]
        losses = F.cross_entropy(scores, answers, reduction="none" if each else "sum")
        if each:
            return {TERM: per_record(losses, batch.texts().flatten()[self.places(batch)], batch)}
        return {TERM: losses, TERM + CORRECT: (scores.argmax(dim=-1) == answers).sum()}

    def _words(self, batch: Batch, ordinary: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each ordinary token the first of its word; itself, if words are not kept whole."""
        itself = np.arange(len(ordinary))
        if not self.config.whole_words:
            return itself
        assert batch.continues is not None, "a batch for whole words says which tokens continue"
        begins = ~batch.continues.numpy().ravel()[ordinary]
        # A token whose word begins with something that is not ordinary begins a word itself.
        begins |= np.diff(ordinary, prepend=-2) > 1
        return np.maximum.accumulate(np.where(begins, itself, 0))

    def _chosen(
        self,
        text: NDArray[np.int64],  # [N] which example a token is of
        word: NDArray[np.int64],  # [N] the first token of its word
        where: NDArray[np.uint64],  # [N] its counter
        root: int,
        rate: float,
    ) -> NDArray[np.bool_]:  # [N]
        """Take words in a random order, as many as make the rate; the last one by chance."""
        score = counter_rng.uniform(counter_rng.key(root, _CHOOSE), where)[word]
        order = np.lexsort((word, score, text))
        texts = text[order]
        place = np.arange(len(order))
        begin = np.searchsorted(texts, texts)  # where each token's text begins in this order
        rank = place - begin
        words = word[order]
        first = np.maximum.accumulate(np.where(np.diff(words, prepend=-1) != 0, place, 0))
        size = np.bincount(word, minlength=len(word))[words]
        wanted = rate * np.bincount(text, minlength=int(text.max(initial=0)) + 1)[texts]
        edge = counter_rng.uniform(counter_rng.key(root, _EDGE), where[order][begin])
        chosen = np.zeros(len(order), dtype=bool)
        chosen[order] = rank[first] + edge * size < wanted
        return chosen
