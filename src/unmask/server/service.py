"""Items of a request + model -> answers: what routes call, and the checks of a request's size."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unmask.infer.model import Model
from unmask.model.block import before_each_block
from unmask.server.batching import Batcher, PendingRequest
from unmask.server.capabilities import TASK_PREFIX, Viewed, capability_of
from unmask.server.limits import Limits, RequestError, invalid, too_large
from unmask.server.metrics import Metrics
from unmask.server.schemas import Request
from unmask.tasks.asks import Ask
from unmask.tasks.base import Task

# For the estimate of tokens: some three letters make a token. Any character outside WORDS counts as
# a token, because BERT splits at punctuation and around CJK characters.
CHARACTERS_PER_TOKEN = 3.0
WORDS = re.compile(r"[A-Za-z0-9\s]+")


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
        for model in models.values():
            if model.fine_tuned and model.task.generates:
                before_each_block(model.network, self.batcher.interrupt)

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
        tokens = estimated_tokens(items)
        return PendingRequest(key, run, items, tokens, generates, model_name)

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
