"""A text -> what the model did with it: attention, what mattered to its answer, its heads' habits.

What a model answers, in order of what it was made for: its labels, the hidden tokens, the vector of
the text. Gradients and mute heads are about that answer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.errors import SettingsError
from unmask.model import masks
from unmask.model.attention import listening, muting
from unmask.tasks import engine
from unmask.tasks.ner import OUTSIDE
from unmask.use.maps import AttentionMaps, Table
from unmask.use.model import Model

HABITS = ("previous", "next", "itself", "same word", "separators")
CLEAR = 0.4  # of its attention, on average: then a head has a habit
STEPS = 32  # of integrated gradients


@dataclass(frozen=True)
class Answer:
    """What the model says of a text, as numbers with names."""

    about: str  # what they are
    names: list[str]
    values: list[float]  # probabilities, or a score; of a vector one cosine
    without: list[float]  # the same without the heads that are mute


@dataclass(frozen=True)
class Habit:
    """What a head tends to do, over a corpus."""

    layer: int
    head: int
    shares: dict[str, float]  # of its attention, by HABITS
    entropy: float  # in bits; of the most even attention it would be `even`
    even: float

    @property
    def name(self) -> str:
        """In a word or two."""
        best = max(self.shares, key=lambda name: self.shares[name])
        if self.shares[best] >= CLEAR:
            return best
        return "everywhere" if self.entropy > 0.85 * self.even else "mixed"


def gradient_times_input(model: Model, text: str, second: str | None = None) -> Table:
    """How much each token's embedding, as it is, moves the answer.  -> [S]"""
    row = Row(model, text, second)
    embedded = row.embedded().requires_grad_()
    with torch.enable_grad():
        score = row.asked(1).score(row.trace(embedded))
        (slope,) = torch.autograd.grad(score, embedded)  # of nothing else: weights keep theirs
    return _per_token(slope * embedded.detach())


def integrated_gradients(model: Model, text: str, second: str | None = None) -> Table:
    """The same, averaged on the way from a row of [PAD] to the text, by captum.  -> [S]"""
    try:
        from captum.attr import IntegratedGradients
    except ImportError:
        raise SettingsError(
            "needs captum, which is not installed. Run: pip install 'unmask[explain]'"
        ) from None
    row = Row(model, text, second)
    asked = row.asked(1)

    def each(rows: Tensor) -> Tensor:
        return torch.stack([asked.score(row.trace(one[None])) for one in rows])

    with torch.enable_grad():
        found = IntegratedGradients(each).attribute(
            row.embedded(), row.embedded(blank=True), n_steps=STEPS, internal_batch_size=1
        )
    return _per_token(found.detach())


def answer(
    model: Model,
    text: str,
    second: str | None = None,
    *,
    mute: dict[int, list[int]] | None = None,
    top: int = 5,
) -> Answer:
    """What the model says, of itself and, with mute heads (layer -> heads), without them."""
    mute = mute or {}
    config = model.network.config
    for layer, own in mute.items():
        if not 0 <= layer < config.layers or any(not 0 <= head < config.heads for head in own):
            raise SettingsError(
                f"layer {layer}, heads {own}: the model has layers 0 to {config.layers - 1} with "
                f"heads 0 to {config.heads - 1}."
            )
    row = Row(model, text, second)
    with torch.no_grad():
        asked, embedded = row.asked(top), row.embedded()
        values = asked.values(row.trace(embedded))
        with listening(model.network, muting(mute)):
            without = asked.values(row.trace(embedded)) if mute else values
    return Answer(asked.about, asked.names, values.tolist(), without.tolist())


def habits(
    model: Model, texts: Iterable[str], *, progress: Callable[[], object] = lambda: None
) -> list[Habit]:
    """What each head does over some texts, layer by layer."""
    sums: Any = 0.0
    rows = 0
    for text in texts:
        maps = model.attention(text)
        progress()
        size = len(maps.tokens)
        if size < 3:
            continue
        weights = maps.weights.astype(np.float64)  # [L, H, S, S]
        kinds = np.stack([(weights * kind).sum(axis=(2, 3)) for kind in _kinds(maps)])
        bits = -(weights * np.log2(np.maximum(weights, 1e-12))).sum(axis=(2, 3))
        even = np.full_like(bits, size * np.log2(size))
        sums = sums + np.concatenate([kinds, bits[None], even[None]])
        rows += size
    if not rows:
        raise SettingsError("no text with a word in it. Give texts to watch the heads read.")
    mean = sums / rows  # [habits + 2, L, H]
    return [
        Habit(
            layer,
            head,
            dict(zip(HABITS, mean[:-2, layer, head].tolist(), strict=True)),
            float(mean[-2, layer, head]),
            float(mean[-1, layer, head]),
        )
        for layer in range(mean.shape[1])
        for head in range(mean.shape[2])
    ]


def _kinds(maps: AttentionMaps) -> list[Table]:
    """Who is looked at, in the order of HABITS.  5 x [S, S] of 0 and 1"""
    size = len(maps.tokens)
    word = np.array(maps.words)
    itself = np.eye(size)
    same = (word[:, None] == word[None, :]) - itself
    separators = np.tile(np.array(maps.special, float), (size, 1))
    return [np.eye(size, k=-1), np.eye(size, k=1), itself, same, separators]


@dataclass(frozen=True)
class Asked:
    """A question whose answer can be computed again: from the states of all layers."""

    about: str
    names: list[str]
    values: Callable[[list[Tensor]], Tensor]  # -> [N], one for each name
    score: Callable[[list[Tensor]], Tensor]  # -> [], the first of them before it is a share


class Row:
    """One text or a pair on its way through the network."""

    def __init__(self, model: Model, text: str, second: str | None) -> None:
        model.refuse_recurrent()
        self.model, self.network = model, model.network
        self.example = model.example(text, second)
        self.batch = engine.lay_out([self.example], pad_id=model.tokenizer.vocabulary.pad)

    def embedded(self, *, blank: bool = False) -> Tensor:
        """What the blocks are given; blank, with [PAD] for every word.  -> [1, S, D]"""
        tokens = self.batch.tokens
        if blank:
            special = torch.tensor([self.example.special])
            tokens = torch.where(special, tokens, self.model.tokenizer.vocabulary.pad)
        with torch.no_grad():
            return self.network.encoder.embed(tokens, self.batch.segments, self.batch.index)

    def trace(self, embedded: Tensor) -> list[Tensor]:
        """The states of all layers.  [1, S, D] -> L + 1 of them"""
        trace: list[Tensor] = []
        allowed = masks.of(self.network.config, self.batch.owner, self.batch.index)
        self.network.encoder.run(embedded, allowed, self.batch.index, trace=trace)
        return trace

    def asked(self, top: int) -> Asked:
        """What this model is best asked about this text."""
        if self.network.heads.labels == "text":
            return self._label()
        if self.network.heads.labels:
            return self._places(top)
        mask = self.model.tokenizer.vocabulary.mask
        if self.network.token_head is not None and mask in self.example.ids:
            return self._hidden(self.example.ids.index(mask), top)
        return self._vector()

    def _label(self) -> Asked:
        heads = self.network.heads
        shares = SHARES[heads.label_answer]

        def scores(trace: list[Tensor]) -> Tensor:
            return self._scores(trace)[0]

        with torch.no_grad():
            best = int(scores(self.trace(self.embedded())).argmax())
        return Asked(
            "labels",
            list(heads.label_names),
            lambda trace: shares(scores(trace)),
            lambda trace: scores(trace)[best],
        )

    def _places(self, top: int) -> Asked:
        """Tags of tokens, or where an answer begins and ends: the surest of all."""
        heads, tokens = self.network.heads, self.model.tokens_of(self.example)
        dim = 0 if heads.labels == "span" else 1

        def shares(trace: list[Tensor]) -> Tensor:
            return self._scores(trace).softmax(dim=dim).flatten()

        with torch.no_grad():
            found = shares(self.trace(self.embedded())).view(len(tokens), -1).clone()
        if OUTSIDE in heads.label_names:
            found[:, heads.label_names.index(OUTSIDE)] = 0.0
        best = found.flatten().topk(min(top, found.numel())).indices
        wide = found.shape[1]
        return Asked(
            "tokens",
            [f"{heads.label_names[i % wide]}: {tokens[i // wide]}" for i in best.tolist()],
            lambda trace: shares(trace)[best],
            lambda trace: self._scores(trace).flatten()[best[0]],
        )

    def _hidden(self, place: int, top: int) -> Asked:
        def scores(trace: list[Tensor]) -> Tensor:
            return self.network.guess(trace[-1][0, place][None])[0]

        with torch.no_grad():
            best = scores(self.trace(self.embedded())).topk(top).indices
        names = self.model.tokenizer.vocabulary.tokens
        return Asked(
            "the hidden token",
            [names[i] if i < len(names) else f"[id {i}]" for i in best.tolist()],
            lambda trace: scores(trace).softmax(dim=-1)[best],
            lambda trace: scores(trace)[best[0]],
        )

    def _vector(self) -> Asked:
        with torch.no_grad():
            truth = F.normalize(self.trace(self.embedded())[-1][0].mean(dim=0), dim=0)
        return Asked(
            "the vector",
            ["cosine to what it is"],
            lambda trace: F.normalize(trace[-1][0].mean(dim=0), dim=0)[None] @ truth,
            lambda trace: trace[-1][0].mean(dim=0) @ truth,
        )

    def _scores(self, trace: list[Tensor]) -> Tensor:
        """Of the label head: one row for a text, or one for each token.  -> [N, C]"""
        layers = self.network.heads.layers
        states = torch.cat([trace[i] for i in layers], dim=-1) if layers else trace[-1]
        first = states[0, :1] if self.network.heads.labels == "text" else states[0]
        return self.network.label_scores(first)


SHARES: dict[str, Callable[[Tensor], Tensor]] = {
    "one": lambda scores: scores.softmax(dim=-1),
    "several": torch.sigmoid,
    "number": lambda scores: scores,
}


def _per_token(found: Tensor) -> Table:
    """[1, S, D] -> [S]"""
    out: Table = found[0].sum(dim=-1).numpy()
    return out
