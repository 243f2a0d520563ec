"""Items of a request + model -> answers: what the routes call, and the checks of a request's size.

A capability answers items that share a model and options, either at once or in a generation
session. All of them run the code of the command line and the Python API.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

from unmask.checkpoint.names import MASKED, PRETRAINING
from unmask.infer.embed import DEFAULTS, EmbedOptions, Vector
from unmask.infer.model import Model, TokenPrediction
from unmask.inspect.html import payload
from unmask.model.shape import PAIR, TOKENS
from unmask.server.batching import Batcher, GenerationSession, PendingRequest
from unmask.server.limits import Limits, RequestError, invalid, too_large
from unmask.server.metrics import Metrics
from unmask.server.schemas import NextSentence, Request
from unmask.tasks.asks import Ask, AskText
from unmask.tasks.base import Task
from unmask.tasks.classify import Classify
from unmask.tasks.ner import AskSentence, Ner
from unmask.tasks.qa import AskPassage, Qa
from unmask.tasks.regress import Regress
from unmask.tasks.translate import Translate
from unmask.tasks.views import View

# For the estimate of tokens: some three letters make a token. Any character outside WORDS counts as
# a token, because BERT splits at punctuation and around CJK characters.
CHARACTERS_PER_TOKEN = 3.0
WORDS = re.compile(r"[A-Za-z0-9\s]+")
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
    task = model.task.asked(asks[0])  # any of them will do: only the options are read
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
        task = model.task.asked(asks[0])
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


def model_named(models: Mapping[str, Model], name: str) -> Model:
    """Return the model of this name; raise a 404 error if there is none."""
    if name not in models:
        message = f"model '{name[:80]}' is not served here. Available models: {', '.join(models)}."
        raise RequestError(404, message, "unknown_model")
    return models[name]


def choose_model(
    models: Mapping[str, Model], capability_name: str, name: str | None
) -> tuple[str, Model]:
    """Return the named model, or without a name the first that supports the capability."""
    capability = capability_of(capability_name)
    for model_name in models if name is None else [name]:
        model = model_named(models, model_name)
        if capability.supports(model):
            return model_name, model
    problem = "no model here supports" if name is None else f"model '{name}' does not support"
    label = capability_name.removeprefix(TASK_PREFIX)
    raise invalid(f"{problem} '{label}'; need {capability.needs}.")


def capability_of(name: str) -> Capability:
    """Return a capability by name; that of a task is called "ask TASK"."""
    if name.startswith(TASK_PREFIX):
        return task_capability(name.removeprefix(TASK_PREFIX))
    return CAPABILITIES[name]


def estimated_tokens(items: Sequence[object]) -> int:
    """Estimate the tokens of items from their length; each gets two more for [CLS] and [SEP].

    Tokenizing them would block the event loop.
    """
    return sum(2 + _estimate(item) for item in items)


def _estimate(item: object) -> int:
    """Estimate the tokens of all texts in an item, also in nested lists and dictionaries."""
    match item:
        case str():
            word_characters = sum(map(len, WORDS.findall(item)))
            return int(word_characters / CHARACTERS_PER_TOKEN) + len(item) - word_characters
        case Ask():
            return _estimate(item.model_dump())
        case dict():
            return _estimate([*item.values()])
        case list() | tuple():
            return sum(map(_estimate, item))
    return 0


class Service:
    """What routes share: the models, the limits, the metrics and the batcher."""

    def __init__(self, models: dict[str, Model], limits: Limits, runs: dict[str, Path]) -> None:
        self.models, self.limits, self.runs = models, limits, runs
        self.metrics = Metrics()
        self.batcher = Batcher(limits, self.metrics)

    async def ask(self, capability: str, request: Request, items: Sequence[object]) -> list[Any]:
        """Return the answers to the items of a request, in order."""
        self._check_limits(items)
        return await self.batcher.ask(self._pending(capability, request, items))

    async def ask_task(self, task: str, request: Request, asks: Sequence[Ask]) -> list[Viewed]:
        """Answer questions of a task, in order; those with equal options share a batch."""
        self._check_limits(asks)
        answers: dict[int, Viewed] = {}
        waiting = dict(enumerate(asks))
        while waiting:
            # Options may hold lists, so they cannot be the keys of a dictionary of groups.
            options = next(iter(waiting.values())).chosen()
            group = {index: ask for index, ask in waiting.items() if ask.chosen() == options}
            pending = self._pending(TASK_PREFIX + task, request, [*group.values()], options)
            answers.update(zip(group, await self.batcher.ask(pending), strict=True))
            waiting = {index: ask for index, ask in waiting.items() if index not in group}
        return [answers[index] for index in range(len(asks))]

    def stream_task(self, task: str, request: Request, ask: Ask) -> AsyncIterator[Viewed]:
        """Return an iterator over the growing answer to one question.

        Not `async`: a request over the limits is refused here, before the response begins.
        """
        self._check_limits([ask])
        return self.batcher.stream(self._pending(TASK_PREFIX + task, request, [ask], ask.chosen()))

    def _pending(
        self, name: str, request: Request, items: Sequence[object], task_options: object = None
    ) -> PendingRequest:
        """Build a request for the inference thread; requests with equal keys share a batch."""
        model_name, model = choose_model(self.models, name, request.model)
        options, capability = request.options(), capability_of(name)
        key = model_name, name, tuple(options.items()), task_options
        generates = capability.generates(model)
        begin = capability.begin_session if generates else None
        run = partial(begin or capability.run, model, **options)
        return PendingRequest(key, run, items, estimated_tokens(items), generates)

    def _check_limits(self, items: Sequence[object]) -> None:
        """Refuse a request with too many texts, too many tokens or options that cost too much."""
        if len(items) > self.limits.texts:
            raise invalid(
                f"the request has {len(items)} texts; at most {self.limits.texts} are allowed. "
                "Split it into several requests."
            )
        for item in items:
            if isinstance(item, Ask):
                self._check_options(item)
        tokens = estimated_tokens(items)
        if tokens > self.limits.tokens:
            raise too_large(
                f"the request has about {tokens:,} tokens; at most {self.limits.tokens:,} are "
                "allowed. Split it into several requests, or shorten its texts."
            )

    def _check_options(self, ask: Ask) -> None:
        """Refuse an option above the server's limit; the task itself may allow larger values."""
        for name, value in ask.chosen():
            limit = self.limits.options.get(name)
            if limit is not None and isinstance(value, int | float) and value > limit:
                raise invalid(f"{name} is {value}; this server allows at most {limit}. Lower it.")

    def schema(self, task: Task[Any, Any]) -> dict[str, Any]:
        """Return the JSON schema of a task's questions, with this server's limits as maxima."""
        schema = task.Ask.model_json_schema()
        for name, limit in self.limits.options.items():
            if name in task.Ask.options:
                field = schema["properties"][name]
                field["maximum"] = min(limit, field.get("maximum", limit))
        return schema
