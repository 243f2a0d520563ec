"""Text -> attribution: gradients and head ablation for an answer; corpus -> head statistics.

The answer is what the model was trained for: its labels if it has some; else, with a token head and
a [MASK] in the text, the prediction for the first [MASK]; else the vector of the text. Gradients
and ablated heads refer to that answer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batch import pack_and_collate
from unmask.data.labelled.conll import OUTSIDE
from unmask.infer.attention_maps import AttentionMaps, Table
from unmask.infer.compiled.graph import refuse_other_encoders
from unmask.infer.model import Model
from unmask.infer.pooling import mean_of_texts
from unmask.model import masks
from unmask.model.attention import ablating, listening, recording
from unmask.model.shape import LABELS, MAIN, TOKENS, LabelsConfig
from unmask.system.errors import SettingsError, require

PATTERNS = ("previous", "next", "itself", "same word", "separators")
PATTERN_SHARE = 0.4  # least mean share of its attention for a head to follow a pattern
STEPS = 32  # points of the path of integrated gradients
TOP = 5  # values shown of an answer that has many
Ablated = dict[int, list[int]]  # layer -> its ablated heads
Trace = list[Tensor]  # hidden states of the embeddings and of every layer
Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """The model's answer to a text as named numbers, with and without ablated heads."""

    about: str  # what the numbers are, such as "labels"
    names: list[str]
    values: list[float]  # probabilities, a score, or the cosine of a vector
    without: list[float]  # `values` with the given heads ablated


@dataclass(frozen=True)
class HeadStatistic:
    """Where a head attends, averaged over the tokens of a corpus."""

    layer: int
    head: int
    shares: dict[str, float]  # of its attention, by PATTERNS
    entropy: float  # in bits
    even: float  # the entropy of uniform attention, in bits

    @property
    def name(self) -> str:
        """The pattern that the head follows, or "everywhere" or "mixed"."""
        best = max(self.shares, key=lambda name: self.shares[name])
        if self.shares[best] >= PATTERN_SHARE:
            return best
        return "everywhere" if self.entropy > 0.85 * self.even else "mixed"


def gradient_times_input(model: Model, text: str, second: str | None = None) -> Table:
    """Compute gradient times input: the effect of each embedding on the answer.  -> [S]"""
    return AttributedText(model, text, second).gradient_times_input()


def integrated_gradients(model: Model, text: str, second: str | None = None) -> Table:
    """Compute integrated gradients from [PAD] tokens to the text, with captum.  -> [S]"""
    return AttributedText(model, text, second).integrated_gradients()


def answer(
    model: Model, text: str, second: str | None = None, *, mute: Ablated | None = None
) -> Prediction:
    """Compute the model's answer and, if heads are given, its answer with them ablated."""
    return AttributedText(model, text, second).answer(mute)


def head_statistics(
    model: Model, texts: Iterable[str], *, progress: Callable[[], object] = lambda: None
) -> list[HeadStatistic]:
    """Measure where each head attends, over all tokens of some texts; layer by layer."""
    total: Sums = np.zeros(())  # [habits + 1, L, H]
    uniform_entropy, token_count = 0.0, 0
    for text in texts:
        maps = model.attention(text)
        progress()
        size = len(maps.tokens)
        if size < 3:  # [CLS] and [SEP] alone
            continue
        weights = maps.weights.astype(np.float64)  # [L, H, S, S]
        sums: list[Sums] = [
            (weights * pattern).sum(axis=(2, 3)) for pattern in _pattern_masks(maps)
        ]
        bits = np.log2(np.maximum(weights, 1e-12))  # keeps 0 log 0 at 0
        sums.append((-weights * bits).sum(axis=(2, 3)))
        total = total + np.stack(sums)
        # Sums are over tokens, so a long text counts for more than a short one. Uniform attention
        # in a text of this size would have log2(size) bits for each token.
        uniform_entropy += float(size * np.log2(size))
        token_count += size
    if not token_count:
        raise SettingsError("no text contains a word; need texts on which to measure the heads.")
    means: list[list[list[float]]] = (total / token_count).transpose(1, 2, 0).tolist()
    return [
        HeadStatistic(
            layer,
            head,
            dict(zip(PATTERNS, shares, strict=True)),
            entropy,
            uniform_entropy / token_count,
        )
        for layer, heads in enumerate(means)
        for head, (*shares, entropy) in enumerate(heads)
    ]


def _pattern_masks(maps: AttentionMaps) -> list[Table]:
    """Return the attention that each of PATTERNS stands for.  -> 5 x [S, S] of 0 and 1"""
    size = len(maps.tokens)
    word_index = np.array(maps.words)
    itself = np.eye(size)
    same_word = (word_index[:, None] == word_index[None, :]) - itself  # other tokens of the word
    separators = np.tile(np.array(maps.special, float), (size, 1))
    return [np.eye(size, k=-1), np.eye(size, k=1), itself, same_word, separators]


@dataclass(frozen=True)
class ProbedAnswer:
    """An answer as a function of the hidden states, so that changed states can be compared."""

    about: str
    names: list[str]
    values: Callable[[Trace], Tensor]  # -> [N], one for each name
    score: Callable[[Trace], Tensor]  # -> [], the first of them before the softmax


class AttributedText:
    """A text or pair with its forward pass, and the answer that attributions refer to.

    The text is tokenized once, and a single pass gives attention, answer and gradient.
    """

    def __init__(
        self, model: Model, text: str, second: str | None = None, *, truncate: bool = True
    ) -> None:
        model.refuse_recurrent()
        self.model, self.network = model, model.network
        self.example = model.example(text, second, truncate=truncate)
        self.batch = pack_and_collate([self.example], pad_id=model.tokenizer.vocabulary.pad)
        # The embeddings are the leaf of the graph: gradients are wanted there, not for weights.
        self.input = self.embedded().requires_grad_()
        with torch.enable_grad(), recording(self.network.encoder) as weights:
            self.states = self.trace(self.input)
        self.weights = [layer.detach() for layer in weights]
        with torch.no_grad():
            self.asked = self._probe()

    @property
    def maps(self) -> AttentionMaps:
        """The attention weights of every layer and head."""
        return self.model.maps_of(self.example, self.weights)

    def embedded(self, *, baseline: bool = False) -> Tensor:
        """Compute the embeddings; if `baseline`, with [PAD] for every word.  -> [1, S, D]"""
        tokens = self.batch.tokens
        if baseline:
            special = torch.tensor([self.example.special])
            # [CLS] and [SEP] stay, so attributions only measure what the words add.
            tokens = torch.where(special, tokens, self.model.tokenizer.vocabulary.pad)
        with torch.no_grad():
            embeddings = self.network.encoder.embeddings
            inputs = tokens, self.batch.segments, self.batch.index
            embedded: Tensor = embeddings(*inputs, self.network.lent(MAIN))
            return embedded

    def trace(self, embedded: Tensor) -> Trace:
        """Run the blocks on embeddings.  [1, S, D] -> L + 1 hidden states"""
        trace: Trace = []
        allowed = masks.of(self.network.config, self.batch.owner, self.batch.index)
        self.network.encoder.run(embedded, allowed, self.batch.index, trace=trace)
        return trace

    def answer(self, mute: Ablated | None = None) -> Prediction:
        """Return the answer and, if heads are given, the answer with them ablated."""
        with torch.no_grad():
            values: list[float] = self.asked.values(self.states).tolist()
        without = self.without(mute) if mute else values
        return Prediction(self.asked.about, self.asked.names, values, without)

    def without(self, mute: Ablated) -> list[float]:
        """Compute the values of the answer with some heads ablated."""
        config = self.network.config
        for layer, layer_heads in mute.items():
            if not 0 <= layer < config.layers or any(
                not 0 <= head < config.heads for head in layer_heads
            ):
                raise SettingsError(
                    f"layer {layer}, heads {layer_heads}: the model has layers 0 to "
                    f"{config.layers - 1} with heads 0 to {config.heads - 1}."
                )
        with torch.no_grad(), listening(self.network, ablating(mute)):
            values: list[float] = self.asked.values(self.trace(self.input)).tolist()
        return values

    def gradient_times_input(self) -> Table:
        """Compute gradient times input for each token.  -> [S]"""
        with torch.enable_grad():
            score = self.asked.score(self.states)
        # Unlike `backward`, `grad` leaves the .grad of the weights alone. The graph is kept: it
        # belongs to the object, and the method may be called again.
        slope: Tensor = torch.autograd.grad(score, self.input, retain_graph=True)[0]
        return _per_token(slope * self.input.detach())

    def integrated_gradients(self) -> Table:
        """Compute integrated gradients from [PAD] tokens to the text, with captum.  -> [S]"""
        require("--integrated", "captum", extra="explain")
        from captum.attr import IntegratedGradients

        def score(embedded: Tensor) -> Tensor:
            return self.asked.score(self.trace(embedded))[None]

        with torch.enable_grad():
            # One point of the path at a time, because mask and positions are those of one row.
            attributions: Tensor = IntegratedGradients(score).attribute(
                self.embedded(), self.embedded(baseline=True), n_steps=STEPS, internal_batch_size=1
            )
        return _per_token(attributions.detach())

    def _probe(self) -> ProbedAnswer:
        """Choose the answer for this model and text, as the module docstring describes."""
        ids, mask = self.example.ids, self.model.tokenizer.vocabulary.mask
        if labels := self.network.shape.labels:
            self._refuse_other_encoder(LABELS)
            return (
                self._probe_text_labels(labels)
                if labels.on == "text"
                else self._probe_token_labels(labels)
            )
        if TOKENS in self.network.heads and mask in ids:
            self._refuse_other_encoder(TOKENS)
            return self._probe_masked_token(ids.index(mask))
        return self._probe_vector()

    def _refuse_other_encoder(self, head: str) -> None:
        refuse_other_encoders(self.network, self.model.path, [head], "attribution covers")

    def _probe_text_labels(self, labels: LabelsConfig) -> ProbedAnswer:
        shares = SHARES[labels.answer]
        best = self._scores(self.states).argmax()
        return ProbedAnswer(
            "labels",
            list(labels.names),
            lambda trace: shares(self._scores(trace)),
            lambda trace: self._scores(trace)[best],
        )

    def _probe_token_labels(self, labels: LabelsConfig) -> ProbedAnswer:
        """The most probable tags of tokens, or start and end positions of an answer span."""
        tokens = self.model.tokens_of(self.example)
        dim = 0 if labels.on == "span" else 1  # spans choose a token, tags a label

        def shares(trace: Trace) -> Tensor:
            return self._scores(trace).softmax(dim=dim)

        probabilities = shares(self.states)
        if OUTSIDE in labels.names:
            # Otherwise "O", the tag of most tokens, would fill the list.
            probabilities[:, labels.names.index(OUTSIDE)] = 0.0
        best = probabilities.flatten().topk(min(TOP, probabilities.numel())).indices
        names = [f"{label}: {token}" for token in tokens for label in labels.names]
        return ProbedAnswer(
            "tokens",
            [names[i] for i in best.tolist()],
            lambda trace: shares(trace).flatten()[best],
            lambda trace: self._scores(trace).flatten()[best[0]],
        )

    def _probe_masked_token(self, place: int) -> ProbedAnswer:
        def scores(trace: Trace) -> Tensor:
            return self.network.token_scores(self.network.mixed(trace, TOKENS)[:, place])[0]

        best = scores(self.states).topk(TOP).indices
        return ProbedAnswer(
            "the masked token",
            [self.model.token(i) for i in best.tolist()],
            lambda trace: scores(trace).softmax(dim=-1)[best],
            lambda trace: scores(trace)[best[0]],
        )

    def _probe_vector(self) -> ProbedAnswer:
        def mean(trace: Trace) -> Tensor:
            return mean_of_texts(trace[-1], self.batch)[0]

        # A vector has no score to follow, so its projection on the unchanged vector stands for it.
        direction = F.normalize(mean(self.states), dim=0)
        return ProbedAnswer(
            "the vector of the text",
            ["cosine to the original vector"],
            lambda trace: F.normalize(mean(trace), dim=0)[None] @ direction,
            lambda trace: mean(trace) @ direction,
        )

    def _scores(self, trace: Trace) -> Tensor:
        """Compute the label scores of the text, or of each token.  -> [C] or [S, C]"""
        return self.network.scores_of_labels(trace)[0]


SHARES: dict[str, Callable[[Tensor], Tensor]] = {
    "one": lambda scores: scores.softmax(dim=-1),
    "several": torch.sigmoid,
    "number": lambda scores: scores,
}


def _per_token(attributions: Tensor) -> Table:
    """Sum attributions over the embedding dimensions.  [1, S, D] -> [S]"""
    token_attributions: Table = attributions[0].sum(dim=-1).numpy()
    return token_attributions
