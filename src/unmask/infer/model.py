"""Model folder -> answers: the class `Model`, which `unmask.load(...)` returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar, overload

import numpy as np
import torch

from unmask.checkpoint.fetch import locate
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.names import architecture
from unmask.data.labelled.columns import Sample
from unmask.data.labelled.conll import sentence_of
from unmask.data.labelled.squad import Question
from unmask.data.read.objects import pairs_of, texts_of
from unmask.infer import Pool
from unmask.infer.attention_maps import AttentionMaps, Table
from unmask.infer.embed import DEFAULTS, EmbedOptions, Layer, Vector, width_of
from unmask.infer.loaded import LoadedModel, TextTokens, TokenPrediction
from unmask.model.attention import recording
from unmask.model.config import SearchSettings
from unmask.model.network import count_parameters
from unmask.model.shape import PAIR, TOKENS
from unmask.system.devices import device_of
from unmask.system.errors import DataError, FolderError, SettingsError, UserError
from unmask.system.settings import validate
from unmask.tasks.base import Task
from unmask.tasks.classify import Classify, Labels
from unmask.tasks.ner import FoundEntities, Ner
from unmask.tasks.qa import Qa, QaAnswer
from unmask.tasks.regress import Regress

T = TypeVar("T")
# A list, a generator, a pandas Series, a numpy array, ...: checked when it is read.
Texts = Any


class Model(LoadedModel):
    """A model that is ready to answer; `unmask.load` returns one.

    Wherever a method takes texts, they may be a list, a generator, a pandas Series, a numpy array
    or a column of a `datasets.Dataset`, with one result per text. A single string gives one result.

    A text that is longer than the model's limit loses its end, which `cut_texts` and `cut_tokens`
    count. With `truncate=False`, it is an error instead.
    """

    @classmethod
    def load(cls, model: str | Path) -> Model:
        """Load a model folder, or a fetched model by its name."""
        return cls(load_folder(locate(model)))

    def __repr__(self) -> str:
        config, shape = self.network.config, self.network.shape
        weights = self.network.table()
        task = "no task"
        with suppress(UserError):  # a plugin's task, or several tasks at once
            task = f"task {self.task.name}"
        parts = [
            architecture(shape),
            f"{config.layers} layers",
            f"hidden size {config.width}",
            f"{count_parameters(self.network):,} parameters",
            f"heads: {', '.join(shape.heads) or 'none'}",
            task,
            str(weights.device),
            "ONNX Runtime" if self.forward is not self.live else str(weights.dtype)[6:],
        ]
        # Every run publishes its model as `model`, so the name of the run tells more.
        name = "/".join(self.path.parts[-2:]) if self.path.name == "model" else self.path.name
        return f"Model({name}: {', '.join(parts)})"

    @property
    def scores(self) -> dict[str, float]:
        """Scores on held-out data that training stored with the model; empty if there are none."""
        facts: dict[str, Any] = (self.manifest or {}).get("provenance") or {}
        return dict(facts.get("scores") or {})

    def to(self, device: str) -> Self:
        """Move the model to a device, such as "cpu", "cuda" or "cuda:1", and return it.

        A compiled model leaves the CPU without its graph and computes in full precision there.
        """
        place = device_of(device)
        self.network.to(place)
        on_cpu = str(place) == "cpu"
        self.forward = self.graph if on_cpu and self.graph is not None else self.live
        return self

    def save(self, folder: str | Path) -> Path:
        """Write the model into a new folder, which `unmask.load` and transformers read.

        The weights are written as they are now. The graph of a compiled model is not saved, because
        it may not belong to these weights any more; `unmask.compile` makes a new one.
        """
        manifest, path = self.manifest or {}, Path(folder)
        save_folder(
            path,
            self.network,
            self.tokenizer,
            recipe=manifest.get("recipe"),
            provenance=manifest.get("provenance"),
            task=manifest.get("task"),
            target=self.folder.target,
        )
        return path

    def embed(
        self,
        texts: Texts,
        *,
        pool: Pool = "mean",
        layer: Layer = -1,
        normalize: bool = True,
        truncate: bool = True,
    ) -> Table:
        """Compute one vector per text: [N, D] for several texts, [D] for a string.

        `pool` is "mean" over all tokens, or "cls" for the state of [CLS]. `layer` is 0 for the
        embeddings up to -1 for the last layer; "last4" concatenates the last four. `normalize`
        scales every vector to length 1.

        `encode` is the same method, under the name that it has in sentence-transformers.
        """
        options = EmbedOptions(pool=pool, layer=layer, normalize=normalize, truncate=truncate)
        vectors = list(self.embeddings(texts, **options))
        if isinstance(texts, str):
            return vectors[0]
        width = width_of(options, self.network.config.width)
        return np.stack(vectors) if vectors else np.zeros((0, width), np.float32)

    encode = embed  # the name in sentence-transformers

    def embeddings(
        self,
        texts: Texts,
        *,
        pool: Pool = "mean",
        layer: Layer = -1,
        normalize: bool = True,
        truncate: bool = True,
    ) -> Iterator[Vector]:
        """Yield one vector per text, in constant memory however many texts there are.

        The options are those of `embed`.
        """
        options = DEFAULTS | EmbedOptions(
            pool=pool, layer=layer, normalize=normalize, truncate=truncate
        )
        read = texts_of([texts] if isinstance(texts, str) else texts)
        return self.vectors(self.examples(([text] for text in read), truncate=truncate), options)

    @overload
    def tokenize(self, text: str, second: str | None = None) -> TextTokens: ...
    @overload
    def tokenize(self, text: Texts) -> list[TextTokens]: ...

    def tokenize(self, text: Texts, second: str | None = None) -> TextTokens | list[TextTokens]:
        """Split a text, a pair of texts, or each of several texts into tokens."""
        if isinstance(text, str):
            return self.tokenized(text, second)
        if second is not None:
            raise SettingsError("tokenize: second belongs to a single text; give a string.")
        return [self.tokenized(one) for one in texts_of(text)]

    @overload
    def fill(
        self, text: str, *, top: int = 5, truncate: bool = True
    ) -> list[list[TokenPrediction]]: ...
    @overload
    def fill(
        self, text: Texts, *, top: int = 5, truncate: bool = True
    ) -> list[list[list[TokenPrediction]]]: ...

    def fill(
        self, text: Texts, *, top: int = 5, truncate: bool = True
    ) -> list[list[TokenPrediction]] | list[list[list[TokenPrediction]]]:
        """Predict the `top` tokens for each [MASK] of a text, most probable first.

        A string gives a list with one list of predictions per [MASK]; several texts give such a
        list for each text.
        """
        self.need(TOKENS, "masked-token", "fill in [MASK]")
        if not isinstance(text, str):
            return [self.filled(one, top, truncate) for one in texts_of(text)]
        return self.filled(text, top, truncate)

    def next(self, first: str, second: str, *, truncate: bool = True) -> float:
        """Compute the probability that the second text follows the first."""
        self.need(PAIR, "next-sentence", "tell whether texts follow each other", "--pairs nsp ")
        example = self.example(first, second, truncate=truncate)
        with torch.inference_mode():
            states = self.network.states_for(PAIR, self.packed(example))
            scores = self.network.pair_scores(states[:, 0])[0]  # class 0: it follows
            return float(scores.softmax(dim=-1)[0])

    @overload
    def classify(self, texts: str, *, truncate: bool = True) -> Labels: ...
    @overload
    def classify(self, texts: Texts, *, truncate: bool = True) -> list[Labels]: ...

    def classify(self, texts: Texts, *, truncate: bool = True) -> Labels | list[Labels]:
        """Predict the labels of each text, or of each pair in a list of pairs."""
        labels: Labels | list[Labels] = self._asked(Classify, texts, truncate)
        return labels

    @overload
    def score(self, texts: str, *, truncate: bool = True) -> float: ...
    @overload
    def score(self, texts: Texts, *, truncate: bool = True) -> list[float]: ...

    def score(self, texts: Texts, *, truncate: bool = True) -> float | list[float]:
        """Predict a number for each text, or for each pair in a list of pairs (regression)."""
        answered = self._asked(Regress, texts, truncate)
        return answered.score if isinstance(texts, str) else [number.score for number in answered]

    @overload
    def answer(self, question: str, context: str) -> QaAnswer: ...
    @overload
    def answer(self, question: Texts, context: Texts) -> list[QaAnswer]: ...

    def answer(self, question: Texts, context: Texts) -> QaAnswer | list[QaAnswer]:
        """Extract the span of a passage that answers a question; text "" if there is none.

        Several questions come with one passage for all of them, or with one passage for each.
        """
        single, shared = isinstance(question, str), isinstance(context, str)
        questions = list(texts_of([question] if single else question, "question"))
        contexts = [context] * len(questions) if shared else list(texts_of(context, "context"))
        if len(questions) != len(contexts):
            raise DataError(
                f"{len(questions)} questions and {len(contexts)} passages; need one passage for "
                "each question, or a single passage."
            )
        records = [
            Question(where := f"question[{i}]", text, passage, None, where)
            for i, (text, passage) in enumerate(zip(questions, contexts, strict=True))
        ]
        answers = self._answered(Qa, records)
        return answers[0] if single and shared else answers

    @overload
    def entities(self, text: str) -> FoundEntities: ...
    @overload
    def entities(self, text: Texts) -> list[FoundEntities]: ...

    def entities(self, text: Texts) -> FoundEntities | list[FoundEntities]:
        """Find the named entities in a text, or in each of several texts."""
        texts = texts_of([text] if isinstance(text, str) else text)
        answers = self._answered(Ner, (sentence_of(t, f"texts[{i}]") for i, t in enumerate(texts)))
        return answers[0] if isinstance(text, str) else answers

    def translate(
        self,
        texts: Texts,
        *,
        beam_size: int = 1,
        length_penalty: float = 1.0,
        max_length: int | None = None,
        sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        split: bool = True,
    ) -> str | list[str]:
        """Translate texts: greedily, with a beam search, or by sampling.

        `beam_size` 1 is greedy; larger beams divide scores by the length to the power of
        `length_penalty`. `max_length` limits the tokens of a translation. `sample` draws tokens,
        with `temperature`, `top_k`, `top_p` and `seed`. A text that is too long is translated in
        parts; without `split`, it is an error.
        """
        table: dict[str, object] = {
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "max_length": max_length,
            "sample": sample,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
        }
        settings = validate(SearchSettings, table, where="translate")
        read = texts_of([texts] if isinstance(texts, str) else texts)
        answers = [one.text for one in self.translator.translate(read, settings, split=split)]
        return answers[0] if isinstance(texts, str) else answers

    def attention(
        self, text: str, second: str | None = None, *, truncate: bool = True
    ) -> AttentionMaps:
        """Compute the attention weights of every layer and head for a text or a pair."""
        self.refuse_recurrent()
        example = self.example(text, second, truncate=truncate)
        with recording(self.network.encoder) as weights:
            self.states(example)
        return self.maps_of(example, weights)

    def _asked(self, kind: type[Task[Any, T]], texts: Texts, truncate: bool) -> Any:
        """Answer texts or pairs: one answer for a string, otherwise a list."""
        single = isinstance(texts, str)
        pairs = pairs_of([texts] if single else texts)
        samples = (Sample(*pair, None, f"texts[{i}]") for i, pair in enumerate(pairs))
        answers = self._answered(kind, samples, truncate=truncate)
        return answers[0] if single else answers

    def _answered(
        self, kind: type[Task[Any, T]], records: Iterable[object], *, truncate: bool = True
    ) -> list[T]:
        """Answer records, if the model was fine-tuned for this kind of task."""
        train = f"`unmask finetune {kind.name} MODEL --train FILE --out RUN`"
        if not (self.fine_tuned or self.network.shape.several()):
            raise FolderError(
                f"{self.path}: a {architecture(self.network.shape)}, which was not fine-tuned for "
                f"{kind.name}. Fine-tune it with {train}."
            )
        if self.task.name != kind.name:
            raise SettingsError(
                f"{self.path}: the model was fine-tuned for {self.task.name}, not for {kind.name}. "
                f"Fine-tune one with {train}."
            )
        return list(self.predict(records, truncate=truncate))
