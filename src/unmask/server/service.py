"""What a model can be asked over HTTP, and how many at a time.

A verb takes a model and items that belong together, and gives an answer to each, at once or in a
session that grows step by step. All of them go through the same code as the command line and
Python.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

from unmask.checkpoint.names import MASKED, PRETRAINING
from unmask.infer.embed import USUAL, EmbedOptions, Vector
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

CHARACTERS = 3.0  # letters of a token, about; other characters are tokens of their own
WORDS = re.compile(r"[A-Za-z0-9\s]+")
ASK = "ask "
TextOrPair = str | tuple[str, str]
Embedded = tuple[Vector, int]  # and the number of tokens that were read
Viewed = tuple[object, View]  # an answer and its view
T = TypeVar("T")


@dataclass(frozen=True)
class Capability:
    """A thing to ask: what answers the items of a request, given its options as keywords."""

    run: Callable[..., Sequence[object]]
    can: Callable[[Model], bool]
    needs: str  # a model that can, in words
    begin: Callable[..., GenerationSession] | None = (
        None  # instead of `run`, for a model that generates
    )

    def grows(self, model: Model) -> bool:
        """Do the answers of this model grow in a session?"""
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
    how = USUAL | options
    examples = list(model.examples(([text] for text in items), truncate=how["truncate"]))
    read = [len(example) for example in examples]
    return list(zip(model.vectors(examples, how), read, strict=True))


def _tokenize(model: Model, items: list[str], *, add_special_tokens: bool) -> list[str]:
    """JSON, written here: a text may have many tokens, and the event loop other things to do."""
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
    """Questions as records of the model's task."""
    return [model.task.record(ask, f"text {i}", i) for i, ask in enumerate(asks, start=1)]


def _answered(model: Model, asks: Sequence[Ask], *, truncate: bool = True) -> list[object]:
    """The answers of the model's task to questions that agree in their options."""
    task = model.task.asked(asks[0])
    return list(model.predict(_records(model, asks), task=task, truncate=truncate))


def _viewed(model: Model, asks: list[Ask], *, truncate: bool = True) -> list[Viewed]:
    """The same, with a view of each answer."""
    return _views(model, _records(model, asks), _answered(model, asks, truncate=truncate))


def _views(model: Model, records: Sequence[object], found: Sequence[object]) -> list[Viewed]:
    pairs = zip(records, found, strict=True)
    return [(answer, model.task.view(record, answer)) for record, answer in pairs]


class _Growing:
    """The same, of a task that generates, step by step."""

    def __init__(self, model: Model, asks: list[Ask], *, truncate: bool = True) -> None:
        self.model, self.records = model, _records(model, asks)
        task = model.task.asked(asks[0])
        self.growing = task.stream(model.forward, self.records, model.tokens)

    @property
    def done(self) -> bool:
        """See Session."""
        return self.growing.done

    def step(self) -> None:
        """See Session."""
        self.growing.step()

    def answers(self) -> Sequence[object]:
        """See Session."""
        return _views(self.model, self.records, self.growing.answers())


def of_task(name: str) -> Capability:
    """The verb of a task: any of its questions, each answer with its view."""

    def can(model: Model) -> bool:
        return model.fine_tuned and model.task.name == name

    return Capability(_viewed, can, f"one that was fine-tuned for {name}", _Growing)


def _short(kind: type[Task[Any, Any]], ask: Callable[[T], Ask]) -> Capability:
    """A short form of a task's questions, each made of an item."""

    def run(model: Model, items: list[T], *, truncate: bool = True) -> list[object]:
        return _answered(model, [ask(item) for item in items], truncate=truncate)

    verb = of_task(kind.name)
    return Capability(run, verb.can, verb.needs)


def _text(item: TextOrPair) -> AskText:
    return AskText(text=item) if isinstance(item, str) else AskText(text=item[0], second=item[1])


def _passage(item: tuple[str, str]) -> AskPassage:
    return AskPassage(question=item[0], context=item[1])


def _sentence(item: str) -> AskSentence:
    return AskSentence(text=item)


VERBS = {
    "embed": Capability(_embed, _any, "any model"),
    "tokenize": Capability(_tokenize, _any, "any model"),
    "classify": _short(Classify, _text),
    "score": _short(Regress, _text),
    "answer": _short(Qa, _passage),
    "entities": _short(Ner, _sentence),
    "fill": Capability(_fill, _has(TOKENS), f"a {MASKED} or {PRETRAINING}"),
    "next": Capability(_next, _has(PAIR), f"a {PRETRAINING}"),
    "attention": Capability(_attention, _attends, "a Transformer"),
    "translate": of_task(Translate.name),
}


def capabilities(model: Model) -> list[str]:
    """The verbs that a model can answer."""
    return [name for name, verb in VERBS.items() if verb.can(model)]


def named(models: Mapping[str, Model], name: str) -> Model:
    """The model of that name."""
    if name not in models:
        message = f"model '{name[:80]}': not served here; there is {', '.join(models)}."
        raise RequestError(404, message, "unknown_model")
    return models[name]


def chosen(models: Mapping[str, Model], verb: str, name: str | None) -> tuple[str, Model]:
    """The model that is named, or the first that can."""
    asked = verb_of(verb)
    for own in models if name is None else [name]:
        model = named(models, own)
        if asked.can(model):
            return own, model
    refused = "no model here is one" if name is None else f"model '{name}' is not one"
    raise invalid(f"{refused} for '{verb.removeprefix(ASK)}'; need {asked.needs}.")


def verb_of(name: str) -> Capability:
    """A verb by its name; that of a task is called `ask` and its name."""
    return of_task(name.removeprefix(ASK)) if name.startswith(ASK) else VERBS[name]


def guessed_tokens(items: Sequence[object]) -> int:
    """About how much there is to compute, without tokenising it on the event loop."""
    return sum(2 + _tokens(item) for item in items)


def _tokens(item: object) -> int:
    """Of all texts in an item, however deep they stand in lists and tables."""
    match item:
        case str():
            letters = sum(map(len, WORDS.findall(item)))
            return int(letters / CHARACTERS) + len(item) - letters
        case Ask():
            return _tokens(item.model_dump())
        case dict():
            return _tokens([*item.values()])
        case list() | tuple():
            return sum(map(_tokens, item))
    return 0


class Service:
    """What a route needs: the models, and somebody who answers."""

    def __init__(self, models: dict[str, Model], limits: Limits, runs: dict[str, Path]) -> None:
        self.models, self.limits, self.runs = models, limits, runs
        self.metrics = Metrics()
        self.batcher = Batcher(limits, self.metrics)

    async def ask(self, verb: str, asked: Request, items: Sequence[object]) -> list[Any]:
        """The answers to the items of a request."""
        self._refuse_many(items)
        return await self.batcher.ask(self._work(verb, asked, items))

    async def ask_task(self, task: str, asked: Request, asks: Sequence[Ask]) -> list[Viewed]:
        """The answers to questions, of which those go together that agree in their options."""
        self._refuse_many(asks)
        found: dict[int, Viewed] = {}
        left = dict(enumerate(asks))
        while left:
            options = next(iter(left.values())).chosen()  # compared, never hashed: may hold lists
            group = {place: ask for place, ask in left.items() if ask.chosen() == options}
            work = self._work(ASK + task, asked, [*group.values()], options)
            found.update(zip(group, await self.batcher.ask(work), strict=True))
            left = {place: ask for place, ask in left.items() if place not in group}
        return [found[place] for place in range(len(asks))]

    def stream_task(self, task: str, asked: Request, ask: Ask) -> AsyncIterator[Viewed]:
        """The answer to one question, as it grows."""
        self._refuse_many([ask])
        return self.batcher.stream(self._work(ASK + task, asked, [ask], ask.chosen()))

    def _work(
        self, verb: str, asked: Request, items: Sequence[object], more: object = None
    ) -> PendingRequest:
        """What the thread is to do; works with an equal key are done together."""
        name, model = chosen(self.models, verb, asked.model)
        options, own = asked.options(), verb_of(verb)
        key = name, verb, tuple(options.items()), more
        grows = own.grows(model)
        run = partial(own.begin if grows and own.begin else own.run, model, **options)
        return PendingRequest(key, run, items, guessed_tokens(items), grows)

    def _refuse_many(self, items: Sequence[object]) -> None:
        """Refuse more than a request may bring."""
        if len(items) > self.limits.texts:
            raise invalid(
                f"{len(items)} texts; a request may have {self.limits.texts}. Send several."
            )
        for item in items:
            if isinstance(item, Ask):
                self._refuse_options(item)
        tokens = guessed_tokens(items)
        if tokens > self.limits.tokens:
            raise too_large(
                f"about {tokens:,} tokens; a request may have {self.limits.tokens:,}. Send less."
            )

    def _refuse_options(self, ask: Ask) -> None:
        """Refuse options that cost more than the server allows, on every route."""
        for name, value in ask.chosen():
            most = self.limits.options.get(name)
            if most is not None and isinstance(value, int | float) and value > most:
                raise invalid(f"{name} {value}: this server allows {most} at most. Ask for less.")

    def schema(self, task: Task[Any, Any]) -> dict[str, Any]:
        """The schema of a task's questions, with the server's own limits of options."""
        schema = task.Ask.model_json_schema()
        for name, most in self.limits.options.items():
            if name in task.Ask.options:
                bounded = schema["properties"][name]
                bounded["maximum"] = min(most, bounded.get("maximum", most))
        return schema
