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
from unmask.infer.loaded import TokenPrediction
from unmask.infer.model import Model
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
    can: Callable[[Model], bool]
    needs: str  # the kind of model it needs, for error messages
    begin: Callable[..., GenerationSession] | None = (
        None  # replaces `run` for a model that generates
    )

    def grows(self, model: Model) -> bool:
        """Tell whether this model answers in a session, step by step."""
        return self.begin is not None and model.task.generates


def _any(model: Model) -> bool:
    return True


def _attends(model: Model) -> bool:
    return model.network.config.cell == "attention"


def _has(head: str) -> Callable[[Model], bool]:
    def can(model: Model) -> bool:
        return head in model.network.heads

    return can


def _embed(model: Model, items: list[str], **options: Unpack[EmbedOptions]) -> list[Embedded]:
    how = DEFAULTS | options
    # Tokenized here and not by `model.embed`: the response needs the number of tokens as well, and
    # a text is tokenized only once.
    examples = list(model.examples(([text] for text in items), truncate=how["truncate"]))
    read = [len(example) for example in examples]
    return list(zip(model.vectors(examples, how), read, strict=True))


def _tokenize(model: Model, items: list[str], *, add_special_tokens: bool) -> list[str]:
    """Return the tokens of each text as JSON.

    It is written by the inference thread: with many tokens, it would hold up the event loop.
    """
    found = []
    for text in items:
        example = model.tokenizer.encode(text)
        names = model.tokens_of(example)
        rows = zip(names, example.ids, example.special, example.offsets, strict=True)
        tokens = [
            {
                "id": id,
                "text": name,
                "special": special,
                "start": None if special else start,
                "stop": None if special else stop,
            }
            for name, id, special, (start, stop) in rows
            if add_special_tokens or not special
        ]
        found.append(json.dumps(tokens))
    return found


def _fill(
    model: Model, items: list[str], *, top: int, truncate: bool
) -> list[list[list[TokenPrediction]]]:
    return [model.fill(text, top=top, truncate=truncate) for text in items]


def _next(model: Model, items: list[tuple[str, str]], *, truncate: bool) -> list[NextSentence]:
    shares = [model.next(first, second, truncate=truncate) for first, second in items]
    return [NextSentence(probability=share, follows=share >= 0.5) for share in shares]


def _attention(
    model: Model, items: list[dict[str, Any]], *, truncate: bool
) -> list[dict[str, Any]]:
    return [payload(model, **item, truncate=truncate) for item in items]


def _records(model: Model, asks: Sequence[Ask]) -> list[object]:
    """Turn questions into records of the model's task."""
    return [model.task.record(ask, f"text {i}", i) for i, ask in enumerate(asks, start=1)]


def _answered(model: Model, asks: Sequence[Ask], *, truncate: bool = True) -> list[object]:
    """Return the task's answers to questions that share their options."""
    task = model.task.asked(asks[0])  # any of them will do: only the options are read
    return list(model.predict(_records(model, asks), task=task, truncate=truncate))


def _viewed(model: Model, asks: list[Ask], *, truncate: bool = True) -> list[Viewed]:
    """Return the task's answers, each with its view."""
    return _views(model, _records(model, asks), _answered(model, asks, truncate=truncate))


def _views(model: Model, records: Sequence[object], found: Sequence[object]) -> list[Viewed]:
    pairs = zip(records, found, strict=True)
    return [(answer, model.task.view(record, answer)) for record, answer in pairs]


class _Growing:
    """The generation session of a task: answers with their views, growing step by step."""

    def __init__(self, model: Model, asks: list[Ask], *, truncate: bool = True) -> None:
        self.model, self.records = model, _records(model, asks)
        task = model.task.asked(asks[0])
        self.growing = task.stream(model.forward, self.records, model.tokens)

    @property
    def done(self) -> bool:
        """Are all answers complete?"""
        return self.growing.done

    def step(self) -> None:
        """Generate the next token of each unfinished answer."""
        self.growing.step()

    def answers(self) -> Sequence[object]:
        """Return the partial answers and their views, in order."""
        return _views(self.model, self.records, self.growing.answers())


def task_capability(name: str) -> Capability:
    """Return the capability behind /ask/TASK: questions -> answers with views."""

    def can(model: Model) -> bool:
        return model.fine_tuned and model.task.name == name

    return Capability(_viewed, can, f"one that was fine-tuned for {name}", _Growing)


def _short(kind: type[Task[Any, Any]], ask: Callable[[T], Ask]) -> Capability:
    """Return the capability of a short route: plain items -> a task's answers, without views."""

    def run(model: Model, items: list[T], *, truncate: bool = True) -> list[object]:
        return _answered(model, [ask(item) for item in items], truncate=truncate)

    verb = task_capability(kind.name)
    return Capability(run, verb.can, verb.needs)


def _text(item: TextOrPair) -> AskText:
    return AskText(text=item) if isinstance(item, str) else AskText(text=item[0], second=item[1])


def _passage(item: tuple[str, str]) -> AskPassage:
    return AskPassage(question=item[0], context=item[1])


def _sentence(item: str) -> AskSentence:
    return AskSentence(text=item)


CAPABILITIES = {
    "embed": Capability(_embed, _any, "any model"),
    "tokenize": Capability(_tokenize, _any, "any model"),
    "classify": _short(Classify, _text),
    "score": _short(Regress, _text),
    "answer": _short(Qa, _passage),
    "entities": _short(Ner, _sentence),
    "fill": Capability(_fill, _has(TOKENS), f"a {MASKED} or {PRETRAINING}"),
    "next": Capability(_next, _has(PAIR), f"a {PRETRAINING}"),
    "attention": Capability(_attention, _attends, "a Transformer"),
    "translate": task_capability(Translate.name),
}


def capabilities(model: Model) -> list[str]:
    """Return the names of what a model can do, in the order of `VERBS`."""
    return [name for name, verb in CAPABILITIES.items() if verb.can(model)]


def model_named(models: Mapping[str, Model], name: str) -> Model:
    """Return the model of this name; raise a 404 error if there is none."""
    if name not in models:
        message = f"model '{name[:80]}': not served here; there is {', '.join(models)}."
        raise RequestError(404, message, "unknown_model")
    return models[name]


def choose_model(models: Mapping[str, Model], verb: str, name: str | None) -> tuple[str, Model]:
    """Return the named model, or without a name the first that supports the capability."""
    asked = capability_of(verb)
    for own in models if name is None else [name]:
        model = model_named(models, own)
        if asked.can(model):
            return own, model
    refused = "no model here is one" if name is None else f"model '{name}' is not one"
    raise invalid(f"{refused} for '{verb.removeprefix(TASK_PREFIX)}'; need {asked.needs}.")


def capability_of(name: str) -> Capability:
    """Return a capability by name; that of a task is called "ask TASK"."""
    return (
        task_capability(name.removeprefix(TASK_PREFIX))
        if name.startswith(TASK_PREFIX)
        else CAPABILITIES[name]
    )


def estimated_tokens(items: Sequence[object]) -> int:
    """Estimate the tokens of items from their length; each gets two more for [CLS] and [SEP].

    Tokenizing them would block the event loop.
    """
    return sum(2 + _tokens(item) for item in items)


def _tokens(item: object) -> int:
    """Estimate the tokens of all texts in an item, also in nested lists and dictionaries."""
    match item:
        case str():
            letters = sum(map(len, WORDS.findall(item)))
            return int(letters / CHARACTERS_PER_TOKEN) + len(item) - letters
        case Ask():
            return _tokens(item.model_dump())
        case dict():
            return _tokens([*item.values()])
        case list() | tuple():
            return sum(map(_tokens, item))
    return 0


class Service:
    """What routes share: the models, the limits, the metrics and the batcher."""

    def __init__(self, models: dict[str, Model], limits: Limits, runs: dict[str, Path]) -> None:
        self.models, self.limits, self.runs = models, limits, runs
        self.metrics = Metrics()
        self.batcher = Batcher(limits, self.metrics)

    async def ask(self, verb: str, asked: Request, items: Sequence[object]) -> list[Any]:
        """Return the answers to the items of a request, in order."""
        self._refuse_many(items)
        return await self.batcher.ask(self._work(verb, asked, items))

    async def ask_task(self, task: str, asked: Request, asks: Sequence[Ask]) -> list[Viewed]:
        """Answer questions of a task, in order; those with equal options share a batch."""
        self._refuse_many(asks)
        found: dict[int, Viewed] = {}
        left = dict(enumerate(asks))
        while left:
            # Options may hold lists, so they cannot be the keys of a dictionary of groups.
            options = next(iter(left.values())).chosen()
            group = {place: ask for place, ask in left.items() if ask.chosen() == options}
            work = self._work(TASK_PREFIX + task, asked, [*group.values()], options)
            found.update(zip(group, await self.batcher.ask(work), strict=True))
            left = {place: ask for place, ask in left.items() if place not in group}
        return [found[place] for place in range(len(asks))]

    def stream_task(self, task: str, asked: Request, ask: Ask) -> AsyncIterator[Viewed]:
        """Return an iterator over the growing answer to one question.

        Not `async`: a request over the limits is refused here, before the response begins.
        """
        self._refuse_many([ask])
        return self.batcher.stream(self._work(TASK_PREFIX + task, asked, [ask], ask.chosen()))

    def _work(
        self, verb: str, asked: Request, items: Sequence[object], more: object = None
    ) -> PendingRequest:
        """Build the work for the inference thread; requests with equal keys share a batch."""
        name, model = choose_model(self.models, verb, asked.model)
        options, own = asked.options(), capability_of(verb)
        key = name, verb, tuple(options.items()), more
        grows = own.grows(model)
        run = partial(own.begin if grows and own.begin else own.run, model, **options)
        return PendingRequest(key, run, items, estimated_tokens(items), grows)

    def _refuse_many(self, items: Sequence[object]) -> None:
        """Refuse a request with too many texts, too many tokens or options that cost too much."""
        if len(items) > self.limits.texts:
            raise invalid(
                f"{len(items)} texts; a request may have {self.limits.texts}. Send several."
            )
        for item in items:
            if isinstance(item, Ask):
                self._refuse_options(item)
        tokens = estimated_tokens(items)
        if tokens > self.limits.tokens:
            raise too_large(
                f"about {tokens:,} tokens; a request may have {self.limits.tokens:,}. Send less."
            )

    def _refuse_options(self, ask: Ask) -> None:
        """Refuse an option above the server's limit; the task itself may allow larger values."""
        for name, value in ask.chosen():
            most = self.limits.options.get(name)
            if most is not None and isinstance(value, int | float) and value > most:
                raise invalid(f"{name} {value}: this server allows {most} at most. Ask for less.")

    def schema(self, task: Task[Any, Any]) -> dict[str, Any]:
        """Return the JSON schema of a task's questions, with this server's limits as maxima."""
        schema = task.Ask.model_json_schema()
        for name, most in self.limits.options.items():
            if name in task.Ask.options:
                bounded = schema["properties"][name]
                bounded["maximum"] = min(most, bounded.get("maximum", most))
        return schema
