"""Model folder -> a network with its tokenizer: what inference, the server and inspection build on.

`Model` adds the methods that a program calls. The methods here work on tokenized texts and on the
records of a task.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint.folder import Folder
from unmask.checkpoint.names import architecture
from unmask.data.batch import Batch, pack_and_collate
from unmask.infer.answering import answer_records
from unmask.infer.attention_maps import AttentionMaps
from unmask.infer.compiled.graph import COMPILED, CompiledForward, onnxruntime_installed
from unmask.infer.embed import EmbedOptions, Vector, pooled_vectors
from unmask.infer.translate import Translator
from unmask.model.kernels.malloc import keep_freed_memory
from unmask.model.shape import LABELS, TOKENS
from unmask.system.devices import device_of
from unmask.system.errors import DataError, FolderError, SettingsError, TextTooLong
from unmask.tasks.base import Task
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import Forward, LiveForward
from unmask.tasks.restore import task_of
from unmask.tasks.results import AnswerCounts, Result
from unmask.text.tokenizer import Encoded
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import MASK, require_mask_token

MIN_LENGTH = 8  # tokens; the smallest limit that a manifest may set


@dataclass(frozen=True, repr=False)
class TokenPrediction(Result):
    """A candidate for a masked token, with its probability."""

    token: str
    probability: float


@dataclass(frozen=True, repr=False)
class TextTokens(Result):
    """The tokens of a text or pair, with [CLS] and [SEP], as the network reads them."""

    tokens: list[str]
    ids: list[int]
    segments: list[int]  # 0 for the first text, 1 for the second
    offsets: list[tuple[int, int]]  # characters of the text that each token stands for
    cut: int  # tokens that did not fit into the model


class LoadedModel:
    """A network with its tokenizer, and the forward passes that compute its answers.

    A text that is longer than the network's limit is truncated, which `cut_texts` and `cut_tokens`
    count; with `truncate=False` it is an error instead.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.path = folder.path
        self.network = folder.network
        keep_freed_memory()  # batches need blocks of the same sizes again and again
        self.live = LiveForward(folder.network)
        self.compiled = COMPILED in (folder.manifest or {}).get("files", {})
        # Without ONNX Runtime, a compiled folder still answers in full precision.
        self.graph = (
            CompiledForward(folder.path / COMPILED)
            if self.compiled and onnxruntime_installed()
            else None
        )
        self.forward: Forward = self.graph or self.live
        self.tokenizer = folder.needed_tokenizer()
        self.manifest = folder.manifest
        self.settings = (folder.manifest or {}).get("task")
        self.cut_texts = 0  # texts that were truncated
        self.cut_tokens = 0  # tokens that they lost

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
                f"of at least {MIN_LENGTH}. Correct it, or fetch the model again."
            )
        return min(length, most)

    @property
    def tokens(self) -> Tokenizers:
        """The tokenizers that a task uses, for the source and for the target of a decoder."""
        return Tokenizers(self.tokenizer, self.limit, self.folder.target)

    @cached_property
    def translator(self) -> Translator:
        """The model as a translator; an error if it has no decoder."""
        return Translator(self.folder, self.limit)

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

        Records are what a task reads from a file. `unmask.predict` takes texts, rows and tables.
        """
        task = task or self.task
        known = None if tally is None else Criterion.of(self.network, task.objective)
        tally = tally or AnswerCounts()
        answered = answer_records(
            self.forward,
            self.tokens,
            task,
            map(_record, records),
            known=known,
            tally=tally,
            truncate=truncate,
        )
        for _, answer in answered:
            yield answer
        self.cut_texts += tally.cut_texts
        self.cut_tokens += tally.cut_tokens

    def vectors(self, examples: Iterable[Encoded], options: EmbedOptions) -> Iterator[Vector]:
        """Yield one vector per text that is tokenized already."""
        # The compiled graph of a fine-tuned model returns its scores, not hidden states.
        forward = self.live if self.network.shape.labels else self.forward
        return pooled_vectors(examples, self.live, forward, self.tokenizer.vocabulary.pad, options)

    def states(self, example: Encoded) -> list[Tensor]:
        """Compute the hidden states of all layers for one text.  -> (layers + 1) x [1, S, D]"""
        with torch.inference_mode():
            return self.live.states(self.packed(example))

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

    def packed(self, example: Encoded) -> Batch:
        """Return a tokenized text as a batch on the network's device."""
        batch = pack_and_collate([example], pad_id=self.tokenizer.vocabulary.pad)
        return batch.to(self.network.table().device)

    def example(self, text: str, second: str | None = None, *, truncate: bool = True) -> Encoded:
        """Tokenize a text or a pair."""
        texts = [text] if second is None else [text, second]
        return next(self.examples([texts], truncate=truncate))

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

    def tokens_of(self, example: Encoded) -> list[str]:
        """Return the tokens of an example as strings."""
        return [self.token(id) for id in example.ids]

    def token(self, id: int) -> str:
        """Return a token as a string; a model may have more embeddings than tokens."""
        tokens = self.tokenizer.vocabulary.tokens
        return tokens[id] if id < len(tokens) else f"[id {id}]"

    def tokenized(self, *texts: str | None) -> TextTokens:
        """Split a text or a pair into tokens; None stands for no second text."""
        given = [text for text in texts if text is not None]
        encoded = self.tokenizer.encode(*given, limit=self.network.config.max_length)
        return TextTokens(
            self.tokens_of(encoded), encoded.ids, encoded.segments, encoded.offsets, encoded.cut
        )

    def filled(self, text: str, top: int, truncate: bool) -> list[list[TokenPrediction]]:
        """Predict the tokens for each [MASK] of one text."""
        require_mask_token(text)
        example = self.example(text, truncate=truncate)
        places = [i for i, id in enumerate(example.ids) if id == self.tokenizer.vocabulary.mask]
        if not places:
            raise DataError(
                f"'{text[:60]}': every {MASK} comes after the {len(example)} tokens that the model "
                "can read. Shorten the text before it."
            )
        with torch.inference_mode():
            # Only masked positions are multiplied with the embeddings of the whole vocabulary.
            states = self.network.states_for(TOKENS, self.packed(example))[0, places]
            scores = self.network.token_scores(states)  # [N, V]
            best = scores.softmax(dim=-1).topk(min(top, scores.shape[-1]), dim=-1)
        ids: list[list[int]] = best.indices.tolist()
        probabilities: list[list[float]] = best.values.tolist()
        return [
            [TokenPrediction(self.token(id), share) for id, share in zip(*row, strict=True)]
            for row in zip(ids, probabilities, strict=True)
        ]

    def need(self, head: str, name: str, purpose: str, flags: str = "") -> None:
        """Raise an error if a head of pre-training is missing."""
        if head not in self.network.heads:
            raise FolderError(
                f"{self.path}: a {architecture(self.network.shape)}, which has no {name} head, so "
                f"it cannot {purpose}. `unmask pretrain CORPUS {flags}--out RUN` trains a model "
                "that has one."
            )


def _record(record: Any) -> Any:
    """Return a record of a task; refuse texts and rows, which have to become records first."""
    if not hasattr(record, "where"):
        raise DataError(
            f"model.predict: got {record!r:.40}; need records of the model's task. For texts, rows "
            "and tables, call unmask.predict(model, data)."
        )
    return record


def move_model(model: LoadedModel, device: str) -> None:
    """Move a model to a device; a compiled one stays on the CPU, where its graph runs."""
    compiled = model.forward is not model.live
    if compiled and device not in ("auto", "cpu"):
        raise SettingsError(
            f"{model.path}: the model is compiled for ONNX Runtime on the CPU, and cannot run on "
            f"{device}. Use the model that it was compiled from, or --device cpu."
        )
    if not compiled:
        model.network.to(device_of(device))
