"""What a model can be asked over HTTP, and how many at a time.

A verb takes a model and items that belong together, and gives an answer to each. All of them go
through the same code as the command line and Python.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from unmask.checkpoint.names import MASKED, PRETRAINING
from unmask.data.questions import Question
from unmask.data.tags import sentence_of
from unmask.model.config import SearchSettings
from unmask.serve.batching import Batcher
from unmask.serve.limits import Limits, Refused, invalid, too_large
from unmask.serve.metrics import Metrics
from unmask.serve.schemas import Asked, Looked, Translated, Verdict
from unmask.settings import build
from unmask.tasks.classify import Labels
from unmask.tasks.ner import Names
from unmask.tasks.qa import Answer
from unmask.use.embed import EmbedOptions, Vector
from unmask.use.model import Guess, Model, TextTooLong
from unmask.use.page import payload

CHARACTERS = 3.0  # letters of a token, about; other characters are tokens of their own
WORDS = re.compile(r"[A-Za-z0-9\s]+")
TextOrPair = str | tuple[str, str]


@dataclass(frozen=True)
class Verb:
    """A thing to ask: what answers the items of a request, given its options as keywords."""

    run: Callable[..., Sequence[Any]]
    can: Callable[[Model], bool]
    needs: str  # a model that can, in words


def _any(model: Model) -> bool:
    return True


def _attends(model: Model) -> bool:
    return model.network.config.cell == "attention"


def _has(part: str) -> Callable[[Model], bool]:
    def can(model: Model) -> bool:
        return getattr(model.network, part) is not None

    return can


def _task(name: str) -> Callable[[Model], bool]:
    def can(model: Model) -> bool:
        return model.network.heads.labels is not None and model.task.name == name

    return can


def _embed(
    model: Model, items: list[str], **options: Unpack[EmbedOptions]
) -> list[tuple[Vector, int]]:
    """Vectors, each with the number of tokens that were read."""
    vectors = list(model.embeddings(items, **options))
    most = model.network.config.max_length
    read = [min(len(ids) + 2, most) for ids in model.tokenizer.ids(items)]
    return list(zip(vectors, read, strict=True))


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


def _classify(model: Model, items: list[TextOrPair], *, truncate: bool) -> list[Labels]:
    if not truncate:
        _refuse_long(model, items)
    return model.classify(items)


def _score(model: Model, items: list[TextOrPair], *, truncate: bool) -> list[float]:
    if not truncate:
        _refuse_long(model, items)
    return model.score(items)


def _refuse_long(model: Model, items: list[TextOrPair]) -> None:
    for number, item in enumerate(items, start=1):
        tokens = len(model.tokenizer.encode(*([item] if isinstance(item, str) else item)))
        if tokens > model.limit:
            raise TextTooLong(number, tokens, model.limit)


def _answer(model: Model, items: list[tuple[str, str]]) -> list[Answer]:
    questions = (
        Question("", question, context, None, "the question") for question, context in items
    )
    return list(model.predict(questions))


def _entities(model: Model, items: list[str]) -> list[Names]:
    # Each is a document of its own: no text may be the context of another client's.
    texts = (
        replace(sentence_of(text, "the text"), document=number) for number, text in enumerate(items)
    )
    return list(model.predict(texts))


def _fill(model: Model, items: list[str], *, top: int, truncate: bool) -> list[list[list[Guess]]]:
    return [model.fill(text, top=top, truncate=truncate) for text in items]


def _next(model: Model, items: list[tuple[str, str]], *, truncate: bool) -> list[Verdict]:
    shares = [model.next(first, second, truncate=truncate) for first, second in items]
    return [Verdict(probability=share, follows=share >= 0.5) for share in shares]


def _attention(
    model: Model, items: list[dict[str, Any]], *, truncate: bool
) -> list[dict[str, Any]]:
    return [payload(model, **item, truncate=truncate) for item in items]


def _translate(
    model: Model, items: list[str], *, alignment: bool, **search: float
) -> list[Translated]:
    """Translations, each with where its words looked if that is wanted and there is attention."""
    speaker = model.translator
    translations = list(speaker.translate(items, build(SearchSettings, search, where="translate")))
    found = []
    for text, own in zip(items, translations, strict=True):
        answer = Translated(text=own.text, score=own.score)
        looked = speaker.looked_at(text, own) if alignment else None
        if looked is not None:
            answer.alignment = Looked(
                source=looked.source, target=looked.target, weights=looked.weights.tolist()
            )
        found.append(answer)
    return found


VERBS = {
    "embed": Verb(_embed, _any, "any model"),
    "tokenize": Verb(_tokenize, _any, "any model"),
    "classify": Verb(_classify, _task("classify"), "one that was fine-tuned to classify"),
    "score": Verb(_score, _task("regress"), "one that was fine-tuned for numbers (regress)"),
    "answer": Verb(_answer, _task("qa"), "one that was fine-tuned to answer questions (qa)"),
    "entities": Verb(_entities, _task("ner"), "one that was fine-tuned to find names (ner)"),
    "fill": Verb(_fill, _has("token_head"), f"a {MASKED} or {PRETRAINING}"),
    "next": Verb(_next, _has("pair_head"), f"a {PRETRAINING}"),
    "attention": Verb(_attention, _attends, "a Transformer"),
    "translate": Verb(_translate, _has("decoder"), "one that was trained to translate"),
}


def abilities(model: Model) -> list[str]:
    """The verbs that a model can answer."""
    return [name for name, verb in VERBS.items() if verb.can(model)]


def named(models: Mapping[str, Model], name: str) -> Model:
    """The model of that name."""
    if name not in models:
        message = f"model '{name[:80]}': not served here; there is {', '.join(models)}."
        raise Refused(404, message, "unknown_model")
    return models[name]


def chosen(models: Mapping[str, Model], verb: str, name: str | None) -> tuple[str, Model]:
    """The model that is named, or the first that can."""
    for own in models if name is None else [name]:
        model = named(models, own)
        if VERBS[verb].can(model):
            return own, model
    refused = "no model here is one" if name is None else f"model '{name}' is not one"
    raise invalid(f"{refused} for '{verb}'; need {VERBS[verb].needs}.")


def guessed_tokens(items: Sequence[Any]) -> int:
    """About how much there is to compute, without tokenising it on the event loop."""
    return sum(2 + _tokens(item) for item in items)


def _tokens(item: Any) -> int:
    if isinstance(item, str):
        letters = sum(len(found) for found in WORDS.findall(item))
        return int(letters / CHARACTERS) + len(item) - letters
    parts = item.values() if isinstance(item, dict) else item
    return sum(_tokens(part) for part in parts if isinstance(part, str))


class Desk:
    """What a route needs: the models, and somebody who answers."""

    def __init__(self, models: dict[str, Model], limits: Limits, runs: dict[str, Path]) -> None:
        self.models, self.limits, self.runs = models, limits, runs
        self.metrics = Metrics()
        self.batcher = Batcher(limits, self.metrics)

    async def ask(self, verb: str, asked: Asked, items: Sequence[Any]) -> list[Any]:
        """The answers to the items of a request."""
        if len(items) > self.limits.texts:
            raise invalid(
                f"{len(items)} texts; a request may have {self.limits.texts}. Send several."
            )
        tokens = guessed_tokens(items)
        if tokens > self.limits.tokens:
            raise too_large(
                f"about {tokens:,} tokens; a request may have {self.limits.tokens:,}. Send less."
            )
        name, model = chosen(self.models, verb, asked.model)
        options = asked.options()
        key = name, verb, tuple(options.items())
        run = partial(VERBS[verb].run, model, **options)
        return await self.batcher.ask(key, run, items, tokens)
