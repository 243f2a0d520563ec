"""Words read one after the other: a recurrent encoder, and decoders that go on word by word.

The road to BERT (Sutskever et al. 2014, Cho et al. 2014, Bahdanau et al. 2015, Luong et al. 2015).
A decoder has states h'; the encoder's states become a context c:

    feeds nothing   h'_1 = f(c),  h'_t = f(h'_t-1)              c is where it begins
    feeds word      h'_t = f(h'_t-1, y_t-1),  h'_0 = c          ... and it hears what it said
    feeds context   h'_t = f(h'_t-1, c),  h'_0 its own          c is fed at every step
    feeds both      h'_t = f(h'_t-1, c, y_t-1),  h'_0 its own

With attention c_t is a mean of the encoder's states, weighted by how well each goes with the
decoder's state: the one before, and then c_t is fed (both), or the one now, and it is only read
(word). It begins with c.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from unmask.model.attention import Alignment
from unmask.model.block import dropout_of, norm_of
from unmask.model.config import ModelConfig
from unmask.model.decoding.unpacking import TextPlaces, texts_left
from unmask.model.init import embedding_table
from unmask.model.kernels import training
from unmask.model.shape import DecoderConfig

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentLayer(nn.Module):
    """One layer that reads texts from left to right and, unless it is causal, back."""

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__()
        self.level = layer + 1  # layers up to this one; optimizer groups go by it
        each = config.width if config.causal else config.width // 2
        self.cell = CELLS[config.cell](
            config.width, each, batch_first=True, bidirectional=not config.causal
        )

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        """[N, L, D], [N] -> [N, L, D]"""
        packed = pack_padded_sequence(x, length.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = self.cell(packed)
        out, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        return out


def last_state(states: Tensor, length: Tensor, config: ModelConfig) -> Tensor:
    """The state that has read the whole text.  [N, L, D], [N] -> [N, D]

    Of two directions each ends elsewhere; in a Transformer [CLS] stands for the text, unless it
    sees nothing of it.
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
    """How far a recurrent decoder is, for N rows.

    Rows that say something to the same text stand together and share its source.
    """

    cell: tuple[Tensor, ...]  # [layers, N, D]: one, or two of an lstm
    context: Tensor  # [N, 1, D]; if it is fed by attention, what was looked at last
    states: Tensor  # [texts, L, D] of the source
    keys: Tensor | None  # [texts, L, D] the same as attention compares them
    real: Tensor  # [texts, L]

    def select(self, which: Tensor, each: int = 1) -> "RecurrentState":
        """Some of the rows, any number of times each, in groups of `each` of one text.  [M]"""
        count = len(self.real)
        texts = texts_left(which, len(self.context) // count, each, count)
        cell = tuple(part[:, which] for part in self.cell)
        spoken = replace(self, cell=cell, context=self.context[which])
        if texts is None:
            return spoken
        keys = None if self.keys is None else self.keys[texts]
        return replace(spoken, states=self.states[texts], keys=keys, real=self.real[texts])


class RecurrentDecoder(nn.Module):
    """Says a text word by word; `feeds` and `attention` say what it hears at each step."""

    def __init__(self, config: ModelConfig, own: DecoderConfig) -> None:
        super().__init__()
        self.config, self.own = config, own
        width = config.width
        self.hears_word = own.feeds in ("word", "both")
        self.hears_context = own.feeds in ("context", "both")
        self.map = nn.Linear(width, width) if own.context != "last" else None
        self.tokens = None if own.shared else embedding_table(own.vocab_size, width)
        self.norm = norm_of(config, width) if self.hears_word else None
        fed = width * (self.hears_word + self.hears_context)
        between = config.dropout if own.layers > 1 else 0.0
        self.cell = CELLS[own.cell](
            max(fed, 1), width, own.layers, batch_first=True, dropout=between
        )
        self.parts = 2 if own.cell == "lstm" else 1  # tensors that a cell goes on from
        self.first = None
        if self.hears_context and own.attention is None:  # else it begins with the context
            self.first = nn.Parameter(torch.zeros(self.parts, own.layers, width))
        self.alignment = Alignment(width, own.attention) if own.attention else None
        self.looks_first = self.alignment is not None and self.hears_context
        read = self.hears_context or self.alignment is not None
        self.read = nn.Linear(width * (1 + read + self.hears_word), width)
        self.bias = nn.Parameter(self.read.weight.new_zeros(own.vocab_size))
        self.dropout = dropout_of(config.dropout)

    def begin(self, states: Tensor, texts: TextPlaces) -> RecurrentState:
        """Before the first word.  states [N, L, D], a row for each text"""
        real = texts.real()
        if self.own.context == "all":
            context = states.sum(dim=1) / texts.length[:, None]
        else:
            context = last_state(states, texts.length, self.config)
        if self.map is not None:
            context = torch.tanh(self.map(context))
        keys = None if self.alignment is None else self.alignment.keys(states)
        if self.first is None:
            cell = (context.expand(self.own.layers, -1, -1).contiguous(),) * self.parts
        else:
            cell = tuple(
                p[:, None].expand(-1, len(states), -1).contiguous() for p in self.first.unbind()
            )
        return RecurrentState(cell, context[:, None], states, keys, real)

    def step(
        self, spoken: RecurrentState, words: Tensor, table: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        """One word further.  words [N], table [V, D] -> [N, D]"""
        heard = self._heard(words[:, None], table)  # [N, 1, D]
        states, context, spoken = self._run(heard, spoken)
        return self._read(states, context, heard)[:, 0], spoken

    def forward(
        self,
        spoken: RecurrentState,
        words: Tensor,  # [N, T]
        table: Tensor,  # [V, D]
        forced: Tensor | None = None,  # [N, T] bool; None: everywhere
    ) -> Tensor:  # [N, T, D]
        """All states, hearing at each step the word that should be there.

        Where it is not `forced` to, it hears what it would have said itself.
        """
        if forced is None:
            return self._together(spoken, words, table)
        states, heard = [], words[:, 0]
        for at in range(words.shape[1]):
            state, spoken = self.step(spoken, heard, table)
            states.append(state)
            if at + 1 < words.shape[1]:
                own = F.linear(state.detach(), table, self.bias).argmax(dim=-1)
                heard = torch.where(forced[:, at + 1], words[:, at + 1], own)
        return torch.stack(states, dim=1)

    def _together(self, spoken: RecurrentState, words: Tensor, table: Tensor) -> Tensor:
        """One call for all steps, unless each waits for where the one before it looked."""
        heard = self._heard(words, table)
        if not self.looks_first:
            states, context, _ = self._run(heard, spoken)
            return self._read(states, context, heard)
        found, contexts = [], []
        for part in torch.split(heard, 1, dim=1):
            states, context, spoken = self._run(part, spoken)
            found.append(states)
            contexts.append(context)
        return self._read(torch.cat(found, dim=1), torch.cat(contexts, dim=1), heard)

    def _heard(self, words: Tensor, table: Tensor) -> Tensor:
        """[N, T] -> [N, T, D]"""
        vectors = F.embedding(words, table)
        return vectors if self.norm is None else training.dropped(self.norm(vectors), self.dropout)

    def _run(self, heard: Tensor, spoken: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """States, what they are read with, and where it ended.  [N, T, D] -> 2 x [N, T, D]"""
        if self.looks_first:  # with the context that the last state asks for
            spoken = replace(spoken, context=self._look(spoken.cell[0][-1][:, None], spoken))
        parts = [heard] if self.hears_word else []
        if self.hears_context:
            parts.append(spoken.context.expand(-1, heard.shape[1], -1))
        fed = torch.cat(parts, dim=-1) if parts else heard.new_zeros(*heard.shape[:2], 1)
        states: Tensor
        cell: Tensor | tuple[Tensor, Tensor]  # of an lstm
        states, cell = self.cell(fed, spoken.cell if self.parts == 2 else spoken.cell[0])
        context = spoken.context  # of the one word that looked first
        if self.alignment is None:
            # Expanded again: the gradient of each use is a sum over the words, of its own.
            context = context.expand_as(states)
        elif not self.looks_first:
            context = self._look(states, spoken)
        return states, context, replace(spoken, cell=cell if isinstance(cell, tuple) else (cell,))

    def _look(self, query: Tensor, spoken: RecurrentState) -> Tensor:
        """A context for each query.  [N, T, D] -> [N, T, D]"""
        assert self.alignment is not None
        assert spoken.keys is not None
        asked = query.reshape(len(spoken.real), -1, query.shape[-1])  # by texts
        found: Tensor = self.alignment(asked, spoken.keys, spoken.states, spoken.real)
        return found.view(query.shape)

    def _read(self, states: Tensor, context: Tensor, heard: Tensor) -> Tensor:
        """What is to be said, from all that is known.  3 x [N, T, D] -> [N, T, D]"""
        parts = [states]
        if self.hears_context or self.alignment is not None:
            parts.append(context)
        if self.hears_word:
            parts.append(heard)
        return training.dropped(torch.tanh(self.read(torch.cat(parts, dim=-1))), self.dropout)
