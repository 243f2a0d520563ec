"""Masked language modelling: mask some tokens and predict them (BERT, section 3.1).

    tokens -> inputs, labels           `prepare`, when the batch is made
    hidden states -> logits -> loss    `read`, when the batch is used

15 % of the ordinary tokens of each text are selected, in random order until there are enough. Of
these, 80 % are replaced by [MASK], 10 % by a random token of the whole vocabulary, and 10 % stay as
they are. With whole-word masking, all tokens of a word are selected and replaced together.
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
# One key per kind of draw; with a common one, all draws for a token would be equal.
_CHOOSE, _EDGE, _DICE, _NOISE = range(100, 104)

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class MaskSettings(Settings):
    """Settings of masking."""

    rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # part of ordinary tokens to predict
    last_rate: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # rate at the end of the run
    mask_share: Share = 0.8  # part of the selected tokens that is replaced by [MASK] ...
    random_share: Share = 0.1  # ... or by a random token; the others stay as they are
    whole_words: bool = False
    frequencies: bool = False  # initial output biases predict token frequencies

    @model_validator(mode="after")
    def _shares_fit(self) -> "MaskSettings":
        if self.mask_share + self.random_share > 1.0:
            raise ValueError("mask_share and random_share are shares of one whole; lower one.")
        return self


class MaskedLM(PlaceObjective):
    """Predict masked tokens from their context on both sides.

    Labels: PLACES, the flat indices of masked tokens, and ANSWERS, the original tokens. `pairs` can
    share its encoder pass.
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
        """Describe the single loss term."""
        return [Term(TERM, "hidden tokens", self.choices, tokens=ANSWERS, places=PLACES)]

    def heads(self, shape: Shape) -> Heads:
        """Return the masked-token head."""
        return {TOKENS: TokensConfig()}

    def standard(self) -> "MaskedLM":
        """Return the objective for evaluation: BERT's masking, at 15 % and by single tokens."""
        return MaskedLM(MaskSettings(), self.vocabulary)

    def rate(self, progress: float) -> float:
        """Return the masking rate, which changes linearly from `rate` to `last_rate`."""
        first, last = self.config.rate, self.config.last_rate
        return first if last is None else first + progress * (last - first)

    def begin(self, network: Network, statistics: TextStatistics) -> None:
        """Set the output biases to log frequencies, if the settings ask for it."""
        # Otherwise a short run spends its first tenth on learning the frequencies. None of them is
        # zero (`Corpus.frequencies`), so the logarithms are finite.
        if self.config.frequencies:
            with torch.no_grad():
                bias = network.head(TOKENS, TokenHead).bias
                bias.copy_(torch.from_numpy(np.log(statistics.frequencies)))

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Mask tokens, selected by the number of the example and the key alone."""
        seen, places = self.corrupt(batch, key, progress)
        masked = torch.from_numpy(batch.tokens.numpy().ravel()[places])
        return batch.with_inputs(tokens=torch.from_numpy(seen)).with_labels(
            len(places), TERM, **{PLACES: torch.from_numpy(places), ANSWERS: masked}
        )

    def corrupt(
        self, batch: Batch, root: int, progress: float = 0.0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return masked inputs, and the flat indices of tokens to predict.  -> [B, S], [N]"""
        tokens, text = batch.tokens.numpy(), batch.texts().numpy()
        ordinary = np.flatnonzero((text >= 0) & ~self.special[tokens])
        assert batch.number is not None, "a batch to hide tokens in has numbers"
        number = batch.number.numpy().view(np.uint64)[text.ravel()[ordinary]]
        place = batch.index.numpy().ravel()[ordinary].astype(np.uint64)
        word = self._words(batch, ordinary)
        # Draws are by example and position in the text, never by row or batch: packing, resuming
        # and the number of processes cannot change a mask. The number of an example of a corpus is
        # 64 random bits, so different examples practically never share a sum.
        where = number + place  # one counter for each token of each example
        chosen = self._chosen(text.ravel()[ordinary], word, where, root, self.rate(progress))

        # Drawn by the first token of a word, so that all its tokens are replaced in the same way.
        dice = counter_rng.uniform(counter_rng.key(root, _DICE), where[word])
        hide = chosen & (dice < self.config.mask_share)
        swap = chosen & ~hide & (dice < self.config.mask_share + self.config.random_share)
        # Random tokens are drawn by token: those of one word differ.
        noise = counter_rng.below(
            self.choices, counter_rng.uniform(counter_rng.key(root, _NOISE), where)
        )
        seen = tokens.copy()
        seen.ravel()[ordinary[hide]] = self.vocabulary.mask
        seen.ravel()[ordinary[swap]] = noise[swap]
        return seen, ordinary[chosen]

    def places(self, batch: Batch) -> Tensor:
        """Return the flat indices of masked tokens.  -> [N]"""
        return batch.labels[PLACES]

    def read(self, network: Network, states: Tensor, batch: Batch, *, each: bool = False) -> Sums:
        """Compute the loss of predicting the masked tokens.  states [N, D]"""
        answers = batch.labels[ANSWERS]  # [N]
        # The fused loss returns neither scores, for the accuracy, nor a loss per token.
        if network.training and not each:
            return {TERM: network.token_loss(states, answers)}
        scores = network.token_scores(states)  # [N, V]
        losses = F.cross_entropy(scores, answers, reduction="none" if each else "sum")
        if each:
            return {TERM: per_record(losses, batch.texts().flatten()[self.places(batch)], batch)}
        return {TERM: losses, TERM + CORRECT: (scores.argmax(dim=-1) == answers).sum()}

    def _words(self, batch: Batch, ordinary: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first token of each ordinary token's word, as an index into `ordinary`.

        Without whole-word masking, each token is a word of its own.
        """
        itself = np.arange(len(ordinary))
        if not self.config.whole_words:
            return itself
        assert batch.continues is not None, "a batch for whole words says which tokens continue"
        begins = ~batch.continues.numpy().ravel()[ordinary]
        # A word ends at a token that cannot be masked, such as [UNK]; what follows begins another.
        begins |= np.diff(ordinary, prepend=-2) > 1
        # A running maximum carries the index of the last beginning on to the tokens after it.
        return np.maximum.accumulate(np.where(begins, itself, 0))

    def _chosen(
        self,
        text: NDArray[np.int64],  # [N] text of each ordinary token
        word: NDArray[np.int64],  # [N] first token of its word
        where: NDArray[np.uint64],  # [N] its counter for random draws
        root: int,
        rate: float,
    ) -> NDArray[np.bool_]:  # [N]
        """Select words of each text in random order until `rate` of its tokens are selected."""
        # A word has one score, so sorting keeps its tokens together; equal scores of two words are
        # told apart by `word`.
        score = counter_rng.uniform(counter_rng.key(root, _CHOOSE), where)[word]
        order = np.lexsort((word, score, text))
        texts = text[order]
        place = np.arange(len(order))
        begin = np.searchsorted(texts, texts)  # where the text begins in this order
        rank = place - begin
        words = word[order]
        first = np.maximum.accumulate(np.where(np.diff(words, prepend=-1) != 0, place, 0))
        size = np.bincount(word, minlength=len(word))[words]
        wanted = rate * np.bincount(text, minlength=int(text.max(initial=0)) + 1)[texts]
        # `wanted` is rarely a whole number of tokens, or where a word ends. The last word, of
        # `size` tokens, is taken with probability (wanted - rank) / size: the expected number of
        # selected tokens is then exactly `wanted`, however short the text and long the words.
        edge = counter_rng.uniform(counter_rng.key(root, _EDGE), where[order][begin])
        chosen = np.zeros(len(order), dtype=bool)
        chosen[order] = rank[first] + edge * size < wanted
        return chosen
