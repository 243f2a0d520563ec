"""Translated texts -> attention of each target word over the source words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data.batch import Numbers
from unmask.data.packing import RowPlan, cheapest_rows
from unmask.model.attention import Observable, recording
from unmask.model.config import SearchSettings
from unmask.model.decoding.beam_search import Hypothesis
from unmask.model.decoding.decoder import Decoder
from unmask.model.decoding.recurrent import RecurrentDecoder
from unmask.model.network import Network
from unmask.model.shape import DECODER
from unmask.objectives.next_token import DecodingSession, PairTokens, batch_of_pairs, decoder_states
from unmask.tasks.views import AlignmentView
from unmask.text.detokenize import merge_word_pieces
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers

Table = NDArray[np.float32]


@dataclass(frozen=True)
class AlignedHypothesis(Hypothesis):
    """A finished hypothesis with its alignment."""

    alignment: AlignmentView | None = None


class AligningSession(DecodingSession):
    """A decoding session that adds alignments once all texts are complete."""

    def __init__(
        self,
        network: Network,
        pairs: Sequence[PairTokens],
        rows: RowPlan,
        tokens: Tokenizers,
        settings: SearchSettings,
    ) -> None:
        super().__init__(network, pairs, rows, tokens, settings)
        self.network, self.pairs, self.tokens = network, pairs, tokens

    def values(self) -> list[Hypothesis]:
        """Return the hypotheses so far; each has its alignment when the session is done."""
        hypotheses = super().values()
        # A stream calls this after every step. The extra pass per text is worth it only at the end.
        if not self.done:
            return hypotheses
        return [
            AlignedHypothesis(
                hypothesis.words,
                hypothesis.score,
                alignment_of(self.network, self.tokens, pair.source, hypothesis.words),
            )
            for pair, hypothesis in zip(self.pairs, hypotheses, strict=True)
        ]


def alignment_of(
    network: Network, tokens: Tokenizers, source: Numbers, translation: Sequence[int]
) -> AlignmentView | None:
    """Compute the alignment of a translation; None if the decoder has no attention over the source.

    Attention weights are averaged over heads and layers, and WordPiece tokens merged into words.
    """
    readers, config = attention_modules(network), network.shape.decoder
    if not readers or config is None:
        return None
    target_tokenizer = tokens.target or tokens.source
    # A translation that was stopped at the limit has no [SEP], so the slice drops it. The decoder
    # reads all tokens but the last, hence the + 1.
    target = [target_tokenizer.vocabulary.cls, *translation, target_tokenizer.vocabulary.sep][
        : config.max_length + 1
    ]
    pair = PairTokens(source, target)
    rows, pad_id = cheapest_rows([len(pair.ids)]), tokens.source.vocabulary.pad
    batch = batch_of_pairs([pair], rows, pad_id=pad_id, term=DECODER)
    # One teacher-forced pass over the finished tokens. The search does not record weights, as its
    # beams are reordered and dropped on the way.
    with torch.inference_mode(), recording(readers) as weights:
        decoder_states(network, batch.to(network.table().device))
    by_layer = [layer_weights[0].mean(dim=0) for layer_weights in weights]  # over heads
    # If one call covers all target tokens, there is one tensor per layer, to average. A decoder
    # that feeds its context back runs token by token: one tensor per token, to concatenate.
    single_call = len(by_layer[0]) == len(pair.answers)
    mean = torch.stack(by_layer).mean(dim=0) if single_call else torch.cat(by_layer)
    source_words, word_of_column = _merged_words(tokens.source, source)
    # Row t predicts token t + 1: the weights belong to the predicted token, so [CLS] has no row.
    target_words, word_of_row = _merged_words(target_tokenizer, target[1:])
    merged = merged_weights(mean.float().cpu().numpy(), word_of_row, word_of_column)
    return AlignmentView(source=source_words, target=target_words, weights=merged.tolist())


def attention_modules(network: Network) -> torch.nn.ModuleList:
    """Return the modules that attend to the source; none for a decoder with a fixed context."""
    decoder = network.heads[DECODER]
    if isinstance(decoder, Decoder):
        return torch.nn.ModuleList(decoder.crosses())
    assert isinstance(decoder, RecurrentDecoder)
    alignment: Observable | None = decoder.alignment
    return torch.nn.ModuleList([] if alignment is None else [alignment])


def merged_weights(weights: Table, rows: Sequence[int], columns: Sequence[int]) -> Table:
    """Merge weights of tokens into weights of words, given the word of each row and column.

    Rows of a word are averaged and columns summed, so the weights of a row still sum to 1.
    [..., T, S] -> [..., words of T, words of S]
    """
    target_members, source_members = _members(rows), _members(columns)
    merged: Table = (
        target_members / target_members.sum(axis=1, keepdims=True) @ weights @ source_members.T
    )
    return merged


def _members(words: Sequence[int]) -> Table:
    """Return the membership matrix of tokens in words.  -> [words, tokens] of 0 and 1"""
    count = max(words, default=-1) + 1
    return np.eye(count, dtype=np.float32)[:, words]


def _merged_words(tokenizer: Tokenizer, ids: Numbers) -> tuple[list[str], list[int]]:
    """Merge tokens into words; also return the word index of each token."""
    return merge_word_pieces([tokenizer.vocabulary.tokens[id] for id in ids])
