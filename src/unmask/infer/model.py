"""Model folder -> answers: the class `Model`, which `unmask.load(...)` returns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from unmask.checkpoint.fetch import locate
from unmask.checkpoint.folder import Folder, load_folder
from unmask.checkpoint.names import MASKED, PRETRAINING, architecture
from unmask.data.batch import Batch, pack_and_collate
from unmask.data.labelled.columns import Sample
from unmask.data.labelled.conll import sentence_of
from unmask.data.labelled.squad import Question
from unmask.infer.answering import answer_records
from unmask.infer.attention_maps import AttentionMaps, Table
from unmask.infer.compiled.graph import COMPILED, CompiledForward, onnxruntime_installed
from unmask.infer.embed import DEFAULTS, EmbedOptions, Vector, pooled_vectors, width_of
from unmask.infer.translate import Translator
from unmask.model.attention import recording
from unmask.model.config import SearchSettings
from unmask.model.kernels.malloc import keep_freed_memory
from unmask.model.shape import LABELS, PAIR, TOKENS
from unmask.system.errors import DataError, FolderError, SettingsError, TextTooLong
from unmask.system.settings import validate
from unmask.tasks.base import Task
from unmask.tasks.classify import Classify, Labels
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import Forward, LiveForward
from unmask.tasks.ner import FoundEntities, Ner
from unmask.tasks.qa import Qa, QaAnswer
from unmask.tasks.regress import Regress
from unmask.tasks.restore import task_of
from unmask.tasks.results import AnswerCounts
from unmask.text.tokenizer import Encoded
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import MASK, require_mask_token

T = TypeVar("T")
MIN_LENGTH = 8  # tokens; the smallest limit that a manifest may set


@dataclass(frozen=True)
class TokenPrediction:
    """A candidate for a masked token, with its probability."""

    token: str
    probability: float


class Model:
    """A network with its tokenizer, ready for inference.

    A text that is longer than the network's limit is truncated, which `cut_texts` and `cut_tokens`
    count; with `truncate=False` it is an error instead.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.path = folder.path
        self.network = folder.network
        keep_freed_memory()  # batches need blocks of the same sizes again and again
        self.live = LiveForward(folder.network)
        self.forward: Forward = self.live
        self.compiled = COMPILED in (folder.manifest or {}).get("files", {})
        # Without ONNX Runtime, a compiled folder still answers in full precision.
        if self.compiled and onnxruntime_installed():
            self.forward = CompiledForward(folder.path / COMPILED)
        self.tokenizer = folder.needed_tokenizer()
        self.manifest = folder.manifest
        self.settings = (folder.manifest or {}).get("task")
        self.cut_texts = 0  # texts that were truncated
        self.cut_tokens = 0  # tokens that they lost

    @classmethod
    def load(cls, model: str | Path) -> "Model":
        """Load a model folder, or a fetched model by its name."""
        return cls(load_folder(locate(model)))

    def embed(self, texts: Iterable[str], **options: Unpack[EmbedOptions]) -> Table:
        """Compute one vector per text.  -> [N, D]"""
        vectors = list(self.embeddings(texts, **options))
        width = width_of(options, self.network.config.width)
        return np.stack(vectors) if vectors else np.zeros((0, width), np.float32)

    def embeddings(self, texts: Iterable[str], **options: Unpack[EmbedOptions]) -> Iterator[Vector]:
        """Yield one vector per text, in constant memory however many texts there are."""
        how = DEFAULTS | options
        examples = self.examples(
            ([text] for text in refuse_string(texts)), truncate=how["truncate"]
        )
        return self.vectors(examples, how)

    def vectors(self, examples: Iterable[Encoded], how: EmbedOptions) -> Iterator[Vector]:
        """Yield one vector per text that is tokenized already."""
        # The compiled graph of a fine-tuned model returns its scores, not hidden states.
        forward = self.live if self.network.shape.labels else self.forward
        return pooled_vectors(examples, self.live, forward, self.tokenizer.vocabulary.pad, how)

    def fill(
        self, text: str, *, top: int = 5, truncate: bool = True
    ) -> list[list[TokenPrediction]]:
        """Predict the `top` tokens for each [MASK] of a text, most probable first."""
        self._need(TOKENS, "guess hidden tokens", f"{MASKED} or {PRETRAINING}")
        require_mask_token(text)
        example = self.example(text, truncate=truncate)
        places = [i for i, id in enumerate(example.ids) if id == self.tokenizer.vocabulary.mask]
        if not places:
            raise DataError(
                f"'{text[:60]}': every {MASK} lies behind the {len(example)} tokens that the model "
                "holds. Shorten the text before it."
            )
        with torch.inference_mode():
            # Only masked positions are multiplied with the embeddings of the whole vocabulary.
            states = self.network.states_for(TOKENS, self._rows(example))[0, places]
            scores = self.network.token_scores(states)  # [N, V]
            best = scores.softmax(dim=-1).topk(min(top, scores.shape[-1]), dim=-1)
        rows: list[list[int]] = best.indices.tolist()
        shares: list[list[float]] = best.values.tolist()
        return [
            [TokenPrediction(self.token(id), share) for id, share in zip(*own, strict=True)]
            for own in zip(rows, shares, strict=True)
        ]

    def next(self, first: str, second: str, *, truncate: bool = True) -> float:
        """Compute the probability that the second text follows the first."""
        self._need(PAIR, "judge next sentences", PRETRAINING)
        example = self.example(first, second, truncate=truncate)
        with torch.inference_mode():
            states = self.network.states_for(PAIR, self._rows(example))
            scores = self.network.pair_scores(states[:, 0])[0]  # class 0: it follows
            return float(scores.softmax(dim=-1)[0])

    @property
    def faster(self) -> str | None:
        """A command that would make inference faster, or None if there is none."""
        if self.forward is not self.live:
            return None
        if self.compiled:
            return "it is compiled for ONNX Runtime: pip install 'unmask[onnx]'"
        first = "" if onnxruntime_installed() else "pip install 'unmask[onnx]', then "
        return f"{first}unmask compile {self.path} --int8 --out FOLDER"

    @cached_property
    def task(self) -> Task[Any, Any]:
        """The task that the model was fine-tuned for."""
        return task_of(self.network.shape, self.settings, str(self.path))

    @property
    def fine_tuned(self) -> bool:
        """Whether the model was fine-tuned for a task."""
        return self.network.shape.labels is not None or self.network.shape.decoder is not None

    @property
    def limit(self) -> int:
        """The longest input in tokens: as in fine-tuning, or what the encoder can hold."""
        shape = self.network.shape
        most = shape.encoders[shape.reads(LABELS if shape.labels else None).encoder].max_length
        length: object = (self.settings or {}).get("length", most)
        # A manifest can be edited by hand. Not isinstance: True would pass as an int.
        if type(length) is not int or length < MIN_LENGTH:
            raise FolderError(
                f"{self.path}: its manifest says task.length {length!r:.40}; need a whole number "
                f"from {MIN_LENGTH} on. Mend it, or fetch the model again."
            )
        return min(length, most)

    @property
    def tokens(self) -> Tokenizers:
        """The tokenizers that a task uses, for the source and for the target of a decoder."""
        return Tokenizers(self.tokenizer, self.limit, self.folder.target)

    def predict(
        self,
        records: Iterable[Any],
        tally: AnswerCounts | None = None,
        task: Task[Any, Any] | None = None,
        *,
        truncate: bool = True,
    ) -> Iterator[Any]:
        """Yield the answer to each record of the model's task, in order and in constant memory.

        With `tally`, the loss of labelled records is computed and counted there. `task` replaces
        the model's own task by one with other options. Without `truncate`, a text that is too long
        is an error.
        """
        task = task or self.task
        known = None if tally is None else Criterion.of(self.network, task.objective)
        tally = tally or AnswerCounts()
        found = answer_records(
            self.forward,
            self.tokens,
            task,
            records,
            known=known,
            tally=tally,
            truncate=truncate,
        )
        for _, answer in found:
            yield answer
        self.cut_texts += tally.cut_texts
        self.cut_tokens += tally.cut_tokens

    def classify(self, texts: Iterable[str | tuple[str, str]]) -> list[Labels]:
        """Predict the labels of each text or pair."""
        return self._ask(Classify, _samples(texts))

    def score(self, texts: Iterable[str | tuple[str, str]]) -> list[float]:
        """Predict a number for each text or pair (regression)."""
        return [number.score for number in self._ask(Regress, _samples(texts))]

    def answer(self, question: str, context: str) -> QaAnswer:
        """Extract the span of a passage that answers a question; text "" if there is none."""
        asked = Question("the question", question, context, None, "the question")
        return self._ask(Qa, [asked])[0]

    def entities(self, text: str) -> FoundEntities:
        """Find the named entities in a text."""
        return self._ask(Ner, [sentence_of(text, "the text")])[0]

    def _ask(self, kind: type[Task[Any, T]], records: Iterable[object]) -> list[T]:
        """Answer records, if the model was fine-tuned for this kind of task."""
        if self.task.name != kind.name:
            raise SettingsError(
                f"{self.path}: the model was fine-tuned for {self.task.name}, not for {kind.name}. "
                f"Train one with `unmask finetune {kind.name}`."
            )
        return list(self.predict(records))

    @cached_property
    def translator(self) -> Translator:
        """The model as a translator; an error if it has no decoder."""
        return Translator(self.folder, self.limit)

    def translate(self, texts: Iterable[str], **search: Any) -> list[str]:
        """Translate texts; `search` takes fields of SearchSettings, such as `beams=4`."""
        settings = validate(SearchSettings, search, where="translate")
        return [found.text for found in self.translator.translate(refuse_string(texts), settings)]

    def attention(
        self, text: str, second: str | None = None, *, truncate: bool = True
    ) -> AttentionMaps:
        """Compute the attention weights of every layer and head for a text or a pair."""
        self.refuse_recurrent()
        example = self.example(text, second, truncate=truncate)
        with recording(self.network.encoder) as weights:
            self.states(example)
        return self.maps_of(example, weights)

    def maps_of(self, example: Encoded, weights: Sequence[Tensor]) -> AttentionMaps:
        """Combine the attention weights of one text or pair with its tokens."""
        stacked = torch.stack([layer[0] for layer in weights]).cpu().numpy()
        return AttentionMaps(self.tokens_of(example), example.segments, example.special, stacked)

    def refuse_recurrent(self) -> None:
        """Raise an error if the layers are recurrent: they have no attention weights."""
        if self.network.config.cell != "attention":
            raise SettingsError(
                f"{self.path}: its layers are {self.network.config.cell}, which have no attention. "
                "Give a Transformer."
            )

    def example(self, text: str, second: str | None = None, *, truncate: bool = True) -> Encoded:
        """Tokenize a text or a pair."""
        texts = [text] if second is None else [text, second]
        return next(self.examples([texts], truncate=truncate))

    def tokens_of(self, example: Encoded) -> list[str]:
        """Return the tokens of an example as strings."""
        return [self.token(i) for i in example.ids]

    def token(self, id: int) -> str:
        """Return a token as a string; a model may have more embeddings than tokens."""
        tokens = self.tokenizer.vocabulary.tokens
        return tokens[id] if id < len(tokens) else f"[id {id}]"

    def states(self, example: Encoded) -> list[Tensor]:
        """Compute the hidden states of all layers for one text.  -> (layers + 1) x [1, S, D]"""
        with torch.inference_mode():
            return self.live.states(self._rows(example))

    def _rows(self, example: Encoded) -> Batch:
        batch = pack_and_collate([example], pad_id=self.tokenizer.vocabulary.pad)
        return batch.to(self.network.table().device)

    def examples(self, texts: Iterable[Sequence[str]], *, truncate: bool) -> Iterator[Encoded]:
        """Tokenize texts or pairs on all cores, ahead of the model; count what is truncated."""
        limit = self.network.config.max_length
        encoded = self.tokenizer.encode_many(texts, limit=limit)
        for number, example in enumerate(encoded, start=1):
            if example.cut and not truncate:
                raise TextTooLong(number, len(example) + example.cut, limit)
            self.cut_texts += example.cut > 0
            self.cut_tokens += example.cut
            yield example

    def _need(self, head: str, what: str, kind: str) -> None:
        if head not in self.network.heads:
            raise FolderError(
                f"{self.path}: has no head to {what} (it is a "
                f"{architecture(self.network.shape)}); need a {kind}. Give another model."
            )


def refuse_string(texts: Iterable[T]) -> Iterable[T]:
    """Refuse a single string, which would be read as a list of its characters."""
    if isinstance(texts, str):
        raise SettingsError("texts is one string; need a list of them. Write [text].")
    return texts


def _samples(texts: Iterable[str | tuple[str, str]]) -> Iterator[Sample]:
    """Turn texts and pairs into unlabelled records."""
    for number, text in enumerate(refuse_string(texts), start=1):
        first, second = (text, None) if isinstance(text, str) else text
        yield Sample(first, second, None, f"text {number}")
