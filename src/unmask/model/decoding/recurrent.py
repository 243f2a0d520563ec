"""Recurrent encoder layers and decoders (LSTM, GRU), the predecessors of the Transformer.

Sequence-to-sequence models of Sutskever et al. 2014, Cho et al. 2014, Bahdanau et al. 2015 and
Luong et al. 2015. A decoder has states h' and previous tokens y; the encoder's states are
summarised in a context c:

    feeds nothing   h'_1 = f(c),  h'_t = f(h'_t-1)              c is the initial state
    feeds word      h'_t = f(h'_t-1, y_t-1),  h'_0 = c          previous token as input
    feeds context   h'_t = f(h'_t-1, c),  h'_0 learned          c as input of every step
    feeds both      h'_t = f(h'_t-1, c, y_t-1),  h'_0 learned

With attention, the initial state is c, and each step has a context c_t of its own, a mean of the
encoder's states weighted by attention. With "both", the query is the previous state, and c_t is an
input (Bahdanau). With "word", the query is the new state, and c_t is used for the output only
(Luong).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from unmask.model.attention import Alignment
from unmask.model.block import dropout_of, norm_of
from unmask.model.config import ModelConfig
from unmask.model.decoding.unpacking import TextPlaces, selected_texts
from unmask.model.init import embedding_table
from unmask.model.kernels import training
from unmask.model.shape import DecoderConfig

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentLayer(nn.Module):
    """LSTM or GRU layer of an encoder, bidirectional unless the config is causal."""

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__()
        self.level = layer + 1  # read by the optimizer, for layer-wise learning rates
        # Two directions of half the width each: together they are as wide as any other layer.
        direction_width = config.width if config.causal else config.width // 2
        self.cell = CELLS[config.cell](
            config.width, direction_width, batch_first=True, bidirectional=not config.causal
        )

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        """Run the layer over texts of the given lengths.  [N, L, D], [N] -> [N, L, D]"""
        # Packed, so that the backward direction starts at the last token and not in the padding.
        packed = pack_padded_sequence(x, length.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = self.cell(packed)
        out, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        return out


def last_state(states: Tensor, length: Tensor, config: ModelConfig) -> Tensor:
    """Return the state that has read the whole text.  [N, L, D], [N] -> [N, D]

    The last token's state if the encoder is causal, else the state of [CLS] in a Transformer. In a
    bidirectional layer, the forward half ends at the last token and the backward half at the first.
    """
    first = states[:, 0]
    last = states[torch.arange(len(states), device=states.device), length - 1]
    if config.causal:
        return last
    if config.cell == "attention":
        return first
    half = states.shape[-1] // 2
    return torch.cat([last[:, :half], first[:, half:]], dim=-1)


@dataclass(frozen=True)
class RecurrentState:
    """State of a recurrent decoder, for N sequences.

    Sequences of the same text (its beams) are adjacent and share the states of the source.
    """

    cell: tuple[Tensor, ...]  # [layers, N, D]: one tensor for a GRU, two for an LSTM
    context: Tensor  # [N, 1, D]; with feeds = "both" and attention, that of the last step
    states: Tensor  # [texts, L, D] of the source
    keys: Tensor | None  # [texts, L, D] attention keys of the source
    real: Tensor  # [texts, L] mask of the source's real tokens

    def select(self, indices: Tensor, group_size: int = 1) -> "RecurrentState":
        """Select sequences, possibly repeated; every `group_size` of them are of one text.  [M]"""
        count = len(self.real)
        texts = selected_texts(indices, len(self.context) // count, group_size, count)
        cell = tuple(part[:, indices] for part in self.cell)
        state = replace(self, cell=cell, context=self.context[indices])
        if texts is None:
            return state
        keys = None if self.keys is None else self.keys[texts]
        return replace(state, states=self.states[texts], keys=keys, real=self.real[texts])


class RecurrentDecoder(nn.Module):
    """LSTM or GRU decoder; `feeds` and `attention` determine the inputs of each step."""

    def __init__(self, config: ModelConfig, settings: DecoderConfig) -> None:
        super().__init__()
        self.config, self.settings = config, settings
        width = config.width
        self.feeds_token = settings.feeds in ("word", "both")
        self.feeds_context = settings.feeds in ("context", "both")
        self.map = nn.Linear(width, width) if settings.context != "last" else None
        self.tokens = None if settings.shared else embedding_table(settings.vocab_size, width)
        self.norm = norm_of(config, width) if self.feeds_token else None
        input_width = width * (self.feeds_token + self.feeds_context)
        dropout = (
            config.dropout if settings.layers > 1 else 0.0
        )  # torch warns if nothing is between
        self.cell = CELLS[settings.cell](
            max(input_width, 1), width, settings.layers, batch_first=True, dropout=dropout
        )
        self.parts = 2 if settings.cell == "lstm" else 1  # tensors in the state of a cell
        self.first = None  # learned initial state; None: the context is the initial state
        if self.feeds_context and settings.attention is None:
            self.first = nn.Parameter(torch.zeros(self.parts, settings.layers, width))
        self.alignment = Alignment(width, settings.attention) if settings.attention else None
        self.attends_first = self.alignment is not None and self.feeds_context
        reads_context = self.feeds_context or self.alignment is not None
        self.read = nn.Linear(width * (1 + reads_context + self.feeds_token), width)
        self.bias = nn.Parameter(self.read.weight.new_zeros(settings.vocab_size))
        self.dropout = dropout_of(config.dropout)

    def begin(self, states: Tensor, texts: TextPlaces) -> RecurrentState:
        """Return the state before the first token.  states [N, L, D], one text per row"""
        real = texts.real()
        if self.settings.context == "all":  # the sum may include padding, which is zero
            context = states.sum(dim=1) / texts.length[:, None]
        else:
            context = last_state(states, texts.length, self.config)
        if self.map is not None:
            context = torch.tanh(self.map(context))
        keys = None if self.alignment is None else self.alignment.keys(states)
        if self.first is None:
            cell = (context.expand(self.settings.layers, -1, -1).contiguous(),) * self.parts
        else:
            cell = tuple(
                part[:, None].expand(-1, len(states), -1).contiguous()
                for part in self.first.unbind()
            )
        return RecurrentState(cell, context[:, None], states, keys, real)

    def step(
        self, state: RecurrentState, tokens: Tensor, table: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        """Append one token to each sequence.  words [N], table [V, D] -> [N, D]"""
        inputs = self._embed(tokens[:, None], table)  # [N, 1, D]
        outputs, context, state = self._run(inputs, state)
        return self._output(outputs, context, inputs)[:, 0], state

    def forward(
        self,
        decoder_state: RecurrentState,
        tokens: Tensor,  # [N, T]
        table: Tensor,  # [V, D]
        forced: Tensor | None = None,  # [N, T] bool; None: True everywhere
    ) -> Tensor:  # [N, T, D]
        """Return the states of all steps, with teacher forcing where `forced` is True.

        Where it is False, the input is the decoder's own most likely token of the step before.
        """
        if forced is None:
            return self._teacher_forced(decoder_state, tokens, table)
        outputs, inputs = [], tokens[:, 0]
        for step in range(tokens.shape[1]):
            output, decoder_state = self.step(decoder_state, inputs, table)
            outputs.append(output)
            if step + 1 < tokens.shape[1]:
                # Detached, because no gradient passes through the choice of a token.
                predicted = F.linear(output.detach(), table, self.bias).argmax(dim=-1)
                inputs = torch.where(forced[:, step + 1], tokens[:, step + 1], predicted)
        return torch.stack(outputs, dim=1)

    def _teacher_forced(self, state: RecurrentState, tokens: Tensor, table: Tensor) -> Tensor:
        """Run all steps with teacher forcing."""
        inputs = self._embed(tokens, table)
        # One call of the cell for all steps. It needs all inputs beforehand: not with attention
        # before the cell, where each input depends on the state of the step before.
        if not self.attends_first:
            outputs, context, _ = self._run(inputs, state)
            return self._output(outputs, context, inputs)
        all_outputs, contexts = [], []
        for step_input in torch.split(inputs, 1, dim=1):
            outputs, context, state = self._run(step_input, state)
            all_outputs.append(outputs)
            contexts.append(context)
        return self._output(torch.cat(all_outputs, dim=1), torch.cat(contexts, dim=1), inputs)

    def _embed(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Embed the input tokens.  [N, T] -> [N, T, D]"""
        vectors = F.embedding(tokens, table)
        return vectors if self.norm is None else training.dropped(self.norm(vectors), self.dropout)

    def _run(self, inputs: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """Run the cell; return its states, their contexts and the new decoder state.

        [N, T, D] -> 2 x [N, T, D]
        """
        if self.attends_first:  # attention by the top layer's previous state, as an input
            state = replace(state, context=self._attend(state.cell[0][-1][:, None], state))
        parts = [inputs] if self.feeds_token else []
        if self.feeds_context:
            parts.append(state.context.expand(-1, inputs.shape[1], -1))
        # With feeds = "nothing", the cell still needs an input: a channel of zeros.
        cell_input = torch.cat(parts, dim=-1) if parts else inputs.new_zeros(*inputs.shape[:2], 1)
        outputs: Tensor
        cell: Tensor | tuple[Tensor, Tensor]  # a tuple for an LSTM
        outputs, cell = self.cell(cell_input, state.cell if self.parts == 2 else state.cell[0])
        context = state.context  # if attention came first, of this one step
        if self.alignment is None:
            # Expanded a second time, so that the gradient of each use is summed over the tokens by
            # itself. One expansion for both would add in another order and round differently.
            context = context.expand_as(outputs)
        elif not self.attends_first:
            context = self._attend(outputs, state)
        return outputs, context, replace(state, cell=cell if isinstance(cell, tuple) else (cell,))

    def _attend(self, query: Tensor, state: RecurrentState) -> Tensor:
        """Attend to the source from each query.  [N, T, D] -> [N, T, D]"""
        assert self.alignment is not None
        assert state.keys is not None
        # The beams of a text become more queries of it, so its keys are not copied for each.
        queries = query.reshape(len(state.real), -1, query.shape[-1])
        attended: Tensor = self.alignment(queries, state.keys, state.states, state.real)
        return attended.view(query.shape)

    def _output(self, outputs: Tensor, context: Tensor, inputs: Tensor) -> Tensor:
        """Combine state, context and input into output states.  3 x [N, T, D] -> [N, T, D]"""
        parts = [outputs]
        if self.feeds_context or self.alignment is not None:
            parts.append(context)
        if self.feeds_token:
            parts.append(inputs)
        return training.dropped(torch.tanh(self.read(torch.cat(parts, dim=-1))), self.dropout)
