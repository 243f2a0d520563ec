"""What a model can be asked over HTTP, and how many at a time.

A verb takes a model and items that belong together, and gives an answer to each. All of them go
through the same code as the command line and Python.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from unmask.checkpoint.names import MASKED, PRETRAINING
from unmask.data.columns import Sample
from unmask.data.questions import Question
from unmask.data.tags import sentence_of
from unmask.model.config import SearchSettings
from unmask.serve.limits import Refused, invalid, too_large
from unmask.settings import build
from unmask.use.model import Model, TextTooLong
from unmask.use.page import payload

CHARACTERS = 3.0  # letters of a token, about; other characters are tokens of their own
WORDS = re.compile(r"[A-Za-z0-9\s]+")
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Verb:
    """A thing to ask."""

    name: str
    run: Callable[[Model, list[Any], dict[str, Any]], Sequence[Any]]
    can: Callable[[Model], bool]
    needs: str  # a model that can, in words


def _tasks(*names: str) -> Callable[[Model], bool]:
    def can(model: Model) -> bool:
        return model.network.heads.labels is not None and model.task.name in names

    return can


@contextmanager
def _whole() -> Iterator[None]:
    """A text that does not fit is told so in the words of HTTP."""
    try:
        yield
    except TextTooLong as error:
        said = f"text {error.number}: {error.tokens:,} tokens; the model holds {error.limit}."
        raise too_large(f"{said} Shorten it, or let its end be cut (truncate: true).") from error


def _embed(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    """Vectors, each with the number of tokens that were read."""
    with _whole():
        vectors = list(model.embeddings(items, **options))
    most = model.network.config.max_length
    read = [min(len(ids) + 2, most) for ids in model.tokenizer.ids(items)]
    return list(zip(vectors, read, strict=True))


def _tokenize(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
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
            if options["special"] or not special
        ]
        found.append(json.dumps(tokens))
    return found


def _classify(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    """Labels or numbers; unless it may, no text is cut."""
    if not options["truncate"]:
        with _whole():
            for number, texts in enumerate(items, start=1):
                example = model.tokenizer.encode(*(text for text in texts if text is not None))
                if len(example) > model.limit:
                    raise TextTooLong(number, len(example), model.limit)
    samples = (Sample(first, second, None, "the text") for first, second in items)
    return list(model.predict(samples))


def _answer(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    questions = (
        Question("", question, context, None, "the question") for question, context in items
    )
    return list(model.predict(questions))


def _entities(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    return list(model.predict(sentence_of(text, "the text") for text in items))


def _fill(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    with _whole():
        return [model.fill(text, **options) for text in items]


def _next(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    with _whole():
        return [model.next(first, second, **options) for first, second in items]


def _attention(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    with _whole():
        return [payload(model, **item) for item in items]


def _translate(model: Model, items: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    """Translations, each with where its words looked if that is wanted and there is attention."""
    speaker = model.translator
    how = {name: value for name, value in options.items() if name != "alignment"}
    found = list(speaker.translate(items, build(SearchSettings, how, where="translate")))
    return [
        (own, speaker.looked_at(text, own) if options["alignment"] else None)
        for text, own in zip(items, found, strict=True)
    ]


VERBS = {
    verb.name: verb
    for verb in (
        Verb("embed", _embed, lambda model: True, "any model"),
        Verb("tokenize", _tokenize, lambda model: True, "any model"),
        Verb("classify", _classify, _tasks("classify"), "one that was fine-tuned to classify"),
        Verb(
            "score", _classify, _tasks("regress"), "one that was fine-tuned for numbers (regress)"
        ),
        Verb("answer", _answer, _tasks("qa"), "one that was fine-tuned to answer questions (qa)"),
        Verb("entities", _entities, _tasks("ner"), "one that was fine-tuned to find names (ner)"),
        Verb(
            "fill",
            _fill,
            lambda model: model.network.token_head is not None,
            f"a {MASKED} or {PRETRAINING}",
        ),
        Verb("next", _next, lambda model: model.network.pair_head is not None, f"a {PRETRAINING}"),
        Verb(
            "attention",
            _attention,
            lambda model: model.network.config.cell == "attention",
            "a Transformer",
        ),
        Verb(
            "translate",
            _translate,
            lambda model: model.network.decoder is not None,
            "one that was trained to translate",
        ),
    )
}


def chosen(models: dict[str, Model], verb: Verb, name: str | None) -> tuple[str, Model]:
    """The model that is named, or the first that can."""
    if name is not None:
        if name not in models:
            known = ", ".join(models)
            message = f"model '{name[:80]}': not served here; there is {known}."
            raise Refused(HTTPStatus.NOT_FOUND, message, "unknown_model")
        if not verb.can(models[name]):
            raise invalid(f"model '{name}' is not one for '{verb.name}'; need {verb.needs}.")
        return name, models[name]
    for own, model in models.items():
        if verb.can(model):
            return own, model
    raise invalid(f"no model here is one for '{verb.name}'; need {verb.needs}.")


def guessed_tokens(items: Sequence[Any]) -> int:
    """About how much there is to compute, without tokenising it on the event loop."""
    return sum(2 + _tokens(item) for item in items)


def _tokens(item: Any) -> int:
    if isinstance(item, str):
        letters = sum(len(found) for found in WORDS.findall(item))
        return int(letters / CHARACTERS) + len(item) - letters
    parts = item.values() if isinstance(item, dict) else item
    return sum(_tokens(part) for part in parts if isinstance(part, str))
