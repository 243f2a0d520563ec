"""What a served model can do: each capability turns the items of a request into answers.

A capability answers items that share a model and options, either at once or in a generation
session. All of them run the code of the command line and the Python API.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from unmask.checkpoint.names import MASKED, PRETRAINING
from unmask.infer.embed import DEFAULTS, EmbedOptions, Vector
from unmask.infer.loaded import TokenPrediction
from unmask.infer.model import Model
from unmask.inspect.html import payload
from unmask.model.shape import PAIR, TOKENS
from unmask.server.batching import GenerationSession
from unmask.server.schemas import NextSentence
from unmask.tasks.asks import Ask, AskText
from unmask.tasks.base import Task
from unmask.tasks.classify import Classify
from unmask.tasks.ner import AskSentence, Ner
from unmask.tasks.qa import AskPassage, Qa
from unmask.tasks.regress import Regress
from unmask.tasks.translate import Translate
from unmask.tasks.views import View

TASK_PREFIX = "ask "  # prefix of a task's capability; a short route may have the name of a task
TextOrPair = str | tuple[str, str]
Embedded = tuple[Vector, int]  # and its number of tokens, for OpenAI's usage
Viewed = tuple[object, View]  # an answer and its view
T = TypeVar("T")


@dataclass(frozen=True)
class Capability:
    """A function that answers the items of a request, and the models that support it."""

    run: Callable[..., Sequence[object]]  # takes model and items, and options as keywords
    supports: Callable[[Model], bool]
    needs: str  # the kind of model it needs, for error messages
    # Replaces `run` for a model that generates.
    begin_session: Callable[..., GenerationSession] | None = None

    def generates(self, model: Model) -> bool:
        """Tell whether this model answers in a session, step by step."""
        return self.begin_session is not None and model.task.generates


def _supports_all(model: Model) -> bool:
    return True


def _has_attention(model: Model) -> bool:
    return model.network.config.cell == "attention"


def _has_head(head: str) -> Callable[[Model], bool]:
    def supports(model: Model) -> bool:
        return head in model.network.heads

    return supports


def _embed(model: Model, items: list[str], **options: Unpack[EmbedOptions]) -> list[Embedded]:
    settings = DEFAULTS | options
    # Tokenized here and not by `model.embed`: the response needs the number of tokens as well, and
    # a text is tokenized only once.
    examples = list(model.examples(([text] for text in items), truncate=settings["truncate"]))
    token_counts = [len(example) for example in examples]
    return list(zip(model.vectors(examples, settings), token_counts, strict=True))


def _tokenize(model: Model, items: list[str], *, add_special_tokens: bool) -> list[str]:
    """Return the tokens of each text as JSON.

    It is written by the inference thread: with many tokens, it would hold up the event loop.
    """
    results = []
    for text in items:
        example = model.tokenizer.encode(text)
        names = model.tokens_of(example)
        details = zip(names, example.ids, example.special, example.offsets, strict=True)
        tokens = [
            {
                "id": token_id,
                "text": name,
                "special": special,
                "start": None if special else start,
                "stop": None if special else stop,
            }
            for name, token_id, special, (start, stop) in details
            if add_special_tokens or not special
        ]
        results.append(json.dumps(tokens))
    return results


def _fill(
    model: Model, items: list[str], *, top: int, truncate: bool
) -> list[list[list[TokenPrediction]]]:
    return [model.fill(text, top=top, truncate=truncate) for text in items]


def _next(model: Model, items: list[tuple[str, str]], *, truncate: bool) -> list[NextSentence]:
    probabilities = [model.next(first, second, truncate=truncate) for first, second in items]
    return [NextSentence(probability=p, follows=p >= 0.5) for p in probabilities]


def _attention(
    model: Model, items: list[dict[str, Any]], *, truncate: bool
) -> list[dict[str, Any]]:
    return [payload(model, **item, truncate=truncate) for item in items]


def _records(model: Model, asks: Sequence[Ask]) -> list[object]:
    """Turn questions into records of the model's task."""
    return [model.task.record(ask, f"text {i}", i) for i, ask in enumerate(asks, start=1)]


def _answers(model: Model, asks: Sequence[Ask], *, truncate: bool = True) -> list[object]:
    """Return the task's answers to questions that share their options."""
    task = model.task.with_options(asks[0])  # any of them will do: only the options are read
    return list(model.predict(_records(model, asks), task=task, truncate=truncate))


def _viewed_answers(model: Model, asks: list[Ask], *, truncate: bool = True) -> list[Viewed]:
    """Return the task's answers, each with its view."""
    return _with_views(model, _records(model, asks), _answers(model, asks, truncate=truncate))


def _with_views(model: Model, records: Sequence[object], answers: Sequence[object]) -> list[Viewed]:
    pairs = zip(records, answers, strict=True)
    return [(answer, model.task.view(record, answer)) for record, answer in pairs]


class _TaskSession:
    """The generation session of a task: answers with their views, growing step by step."""

    def __init__(self, model: Model, asks: list[Ask], *, truncate: bool = True) -> None:
        self.model, self.records = model, _records(model, asks)
        task = model.task.with_options(asks[0])
        self.session = task.stream(model.forward, self.records, model.tokens)

    @property
    def done(self) -> bool:
        """Are all answers complete?"""
        return self.session.done

    def step(self) -> None:
        """Generate the next token of each unfinished answer."""
        self.session.step()

    def answers(self) -> Sequence[object]:
        """Return the partial answers and their views, in order."""
        return _with_views(self.model, self.records, self.session.answers())


def task_capability(name: str) -> Capability:
    """Return the capability behind /ask/TASK: questions -> answers with views."""

    def supports(model: Model) -> bool:
        return model.fine_tuned and model.task.name == name

    needs = f"a model fine-tuned for {name}"
    return Capability(_viewed_answers, supports, needs, _TaskSession)


def _short_route(task_class: type[Task[Any, Any]], ask: Callable[[T], Ask]) -> Capability:
    """Return the capability of a short route: plain items -> a task's answers, without views."""

    def run(model: Model, items: list[T], *, truncate: bool = True) -> list[object]:
        return _answers(model, [ask(item) for item in items], truncate=truncate)

    task_route = task_capability(task_class.name)
    return Capability(run, task_route.supports, task_route.needs)


def _ask_text(item: TextOrPair) -> AskText:
    return AskText(text=item) if isinstance(item, str) else AskText(text=item[0], second=item[1])


def _ask_passage(item: tuple[str, str]) -> AskPassage:
    return AskPassage(question=item[0], context=item[1])


def _ask_sentence(item: str) -> AskSentence:
    return AskSentence(text=item)


CAPABILITIES = {
    "embed": Capability(_embed, _supports_all, "any model"),
    "tokenize": Capability(_tokenize, _supports_all, "any model"),
    "classify": _short_route(Classify, _ask_text),
    "score": _short_route(Regress, _ask_text),
    "answer": _short_route(Qa, _ask_passage),
    "entities": _short_route(Ner, _ask_sentence),
    "fill": Capability(_fill, _has_head(TOKENS), f"a {MASKED} or {PRETRAINING}"),
    "next": Capability(_next, _has_head(PAIR), f"a {PRETRAINING}"),
    "attention": Capability(_attention, _has_attention, "a Transformer"),
    "translate": task_capability(Translate.name),
}


def capabilities(model: Model) -> list[str]:
    """Return the names of what a model can do, in the order of `CAPABILITIES`."""
    return [name for name, capability in CAPABILITIES.items() if capability.supports(model)]


def capability_of(name: str) -> Capability:
    """Return a capability by name; that of a task is called "ask TASK"."""
    if name.startswith(TASK_PREFIX):
        return task_capability(name.removeprefix(TASK_PREFIX))
    return CAPABILITIES[name]
