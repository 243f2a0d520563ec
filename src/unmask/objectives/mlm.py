"""Masked language modelling: mask some tokens and predict them (BERT, section 3.1).

    tokens -> inputs, labels           `prepare`, when the batch is made
    hidden states -> logits -> loss    `read`, when the batch is used

15 % of the ordinary tokens of each text are selected, in random order until there are enough. Of
these, 80 % are replaced by [MASK], 10 % by a random token of the whole vocabulary, and 10 % stay as
they are. With whole-word masking, all tokens of a word are selected and replaced together.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

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
_SELECT, _EDGE, _REPLACE, _NOISE = range(100, 104)

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class MaskSettings(Settings):
    """Settings of masking."""

    mask_rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # part of ordinary tokens to predict
    final_mask_rate: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # at the end of the run
    mask_share: Share = 0.8  # part of the selected tokens that is replaced by [MASK] ...
    random_share: Share = 0.1  # ... or by a random token; the others stay as they are
    whole_word_masking: bool = False
    init_output_bias: bool = False  # initial output biases are log token frequencies

    old_names: ClassVar[Mapping[str, str]] = {
        "rate": "mask_rate",
        "last_rate": "final_mask_rate",
        "whole_words": "whole_word_masking",
        "frequencies": "init_output_bias",
    }

    @model_validator(mode="after")
    def _check_shares(self) -> "MaskSettings":
        if self.mask_share + self.random_share > 1.0:
            raise ValueError(
                "mask_share and random_share add up to more than 1; lower one of them."
            )
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
        return [Term(TERM, "masked tokens", self.choices, tokens=ANSWERS, places=PLACES)]

    def heads(self, shape: Shape) -> Heads:
        """Return the masked-token head."""
        return {TOKENS: TokensConfig()}

    def standard(self) -> "MaskedLM":
        """Return the objective for evaluation: BERT's masking, at 15 % and by single tokens."""
        return MaskedLM(MaskSettings(), self.vocabulary)

    def mask_rate(self, progress: float) -> float:
        """Return the masking rate, which changes linearly from `mask_rate` to `final_mask_rate`."""
        first, last = self.config.mask_rate, self.config.final_mask_rate
        return first if last is None else first + progress * (last - first)

    def begin(self, network: Network, statistics: TextStatistics) -> None:
        """Set the output biases to log frequencies, if the settings ask for it."""
        # Otherwise a short run spends its first tenth on learning the frequencies. None of them is
        # zero (`Corpus.frequencies`), so the logarithms are finite.
        if self.config.init_output_bias:
            with torch.no_grad():
                bias = network.head(TOKENS, TokenHead).bias
                bias.copy_(torch.from_numpy(np.log(statistics.frequencies)))

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Mask tokens, selected by the number of the example and the key alone."""
        inputs, places = self.corrupt(batch, key, progress)
        answers = torch.from_numpy(batch.tokens.numpy().ravel()[places])
        return batch.with_inputs(tokens=torch.from_numpy(inputs)).with_labels(
            len(places), TERM, **{PLACES: torch.from_numpy(places), ANSWERS: answers}
        )

    def corrupt(
        self, batch: Batch, root: int, progress: float = 0.0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return masked inputs, and the flat indices of tokens to predict.  -> [B, S], [N]"""
        tokens, text_numbers = batch.tokens.numpy(), batch.texts().numpy()
        ordinary = np.flatnonzero((text_numbers >= 0) & ~self.special[tokens])
        assert batch.number is not None, "masking needs the example numbers of the batch"
        example_numbers = batch.number.numpy().view(np.uint64)[text_numbers.ravel()[ordinary]]
        positions = batch.index.numpy().ravel()[ordinary].astype(np.uint64)
        first_of_word = self._word_starts(batch, ordinary)
        # Draws are by example and position in the text, never by row or batch: packing, resuming
        # and the number of processes cannot change a mask. The number of an example of a corpus is
        # 64 random bits, so different examples practically never share a sum.
        counters = example_numbers + positions  # one counter for each token of each example
        selected = self._select(
            text_numbers.ravel()[ordinary], first_of_word, counters, root, self.mask_rate(progress)
        )

        # Drawn by the first token of a word, so that all its tokens are replaced in the same way.
        draws = counter_rng.uniform(counter_rng.key(root, _REPLACE), counters[first_of_word])
        to_mask = selected & (draws < self.config.mask_share)
        to_replace = (
            selected & ~to_mask & (draws < self.config.mask_share + self.config.random_share)
        )
        # Random tokens are drawn by token: those of one word differ.
        random_tokens = counter_rng.below(
            self.choices, counter_rng.uniform(counter_rng.key(root, _NOISE), counters)
        )
        inputs = tokens.copy()
        inputs.ravel()[ordinary[to_mask]] = self.vocabulary.mask
        inputs.ravel()[ordinary[to_replace]] = random_tokens[to_replace]
        return inputs, ordinary[selected]

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

    def _word_starts(self, batch: Batch, ordinary: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first token of each ordinary token's word, as an index into `ordinary`.

        Without whole-word masking, each token is a word of its own.
        """
        positions = np.arange(len(ordinary))
        if not self.config.whole_word_masking:
            return positions
        assert batch.continues is not None, "whole-word masking needs `Batch.continues`"
        begins_word = ~batch.continues.numpy().ravel()[ordinary]
        # A word ends at a token that cannot be masked, such as [UNK]; what follows begins another.
        begins_word |= np.diff(ordinary, prepend=-2) > 1
        # A running maximum carries the index of the last beginning on to the tokens after it.
        return np.maximum.accumulate(np.where(begins_word, positions, 0))

    def _select(
        self,
        text_numbers: NDArray[np.int64],  # [N] text of each ordinary token
        first_of_word: NDArray[np.int64],  # [N] first token of its word
        counters: NDArray[np.uint64],  # [N] its counter for random draws
        root: int,
        rate: float,
    ) -> NDArray[np.bool_]:  # [N]
        """Select words of each text in random order until `rate` of its tokens are selected."""
        # A word has one score, so sorting keeps its tokens together; equal scores of two words are
        # told apart by `word`.
        scores = counter_rng.uniform(counter_rng.key(root, _SELECT), counters)[first_of_word]
        order = np.lexsort((first_of_word, scores, text_numbers))
        texts_in_order = text_numbers[order]
        ranks_in_batch = np.arange(len(order))
        text_begins = np.searchsorted(
            texts_in_order, texts_in_order
        )  # where the text begins in this order
        ranks = ranks_in_batch - text_begins
        words_in_order = first_of_word[order]
        word_begins = np.maximum.accumulate(
            np.where(np.diff(words_in_order, prepend=-1) != 0, ranks_in_batch, 0)
        )
        word_sizes = np.bincount(first_of_word, minlength=len(first_of_word))[words_in_order]
        targets = (
            rate
            * np.bincount(text_numbers, minlength=int(text_numbers.max(initial=0)) + 1)[
                texts_in_order
            ]
        )
        # `wanted` is rarely a whole number of tokens, or where a word ends. The last word, of
        # `size` tokens, is taken with probability (wanted - rank) / size: the expected number of
        # selected tokens is then exactly `wanted`, however short the text and long the words.
        edges = counter_rng.uniform(counter_rng.key(root, _EDGE), counters[order][text_begins])
        selected = np.zeros(len(order), dtype=bool)
        selected[order] = ranks[word_begins] + edges * word_sizes < targets
        return selected
