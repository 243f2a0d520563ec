"""Routes of our own: each is a verb of the command line, with its name and its answers."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from unmask.serve import schemas
from unmask.serve.limits import Refused
from unmask.serve.work import VERBS
from unmask.tasks.classify import Labels
from unmask.tasks.ner import Names
from unmask.tasks.qa import Answer
from unmask.use.model import Guess
from unmask.use.translate import Looked, Translation

if TYPE_CHECKING:
    from unmask.serve.app import Desk

MOST = 1500  # entries of a run's training that are sent


def router(desk: "Desk") -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["unmask"])
    _asking(routes, desk)
    _looking(routes, desk)
    return routes


def _asking(routes: APIRouter, desk: "Desk") -> None:
    @routes.post("/fill")
    async def fill(asked: schemas.Fill) -> list[list[Guess]]:
        """The likeliest tokens for each [MASK], best first."""
        _, (found,) = await desk.ask(
            "fill", asked.model, [asked.text], top=asked.top, truncate=asked.truncate
        )
        guesses: list[list[Guess]] = found
        return guesses

    @routes.post("/next")
    async def next_sentence(asked: schemas.Next) -> schemas.Verdict:
        """How likely the second sentence is to have followed the first."""
        pair = asked.first, asked.second
        _, (share,) = await desk.ask("next", asked.model, [pair], truncate=asked.truncate)
        return schemas.Verdict(probability=share, follows=share >= 0.5)

    @routes.post("/classify")
    async def classify(asked: schemas.Classify) -> list[Labels]:
        """The labels of each text or pair."""
        items = _pairs(asked.texts)
        return (await desk.ask("classify", asked.model, items, truncate=asked.truncate))[1]

    @routes.post("/score")
    async def score(asked: schemas.Classify) -> list[float]:
        """The number that belongs to each text or pair."""
        items = _pairs(asked.texts)
        _, found = await desk.ask("score", asked.model, items, truncate=asked.truncate)
        return [number.score for number in found]

    @routes.post("/answer")
    async def answer(asked: schemas.Question) -> Answer:
        """The stretch of a passage that answers a question."""
        _, (found,) = await desk.ask("answer", asked.model, [(asked.question, asked.context)])
        assert isinstance(found, Answer)
        return found

    @routes.post("/entities")
    async def entities(asked: schemas.Entities) -> list[Names]:
        """The names in each text."""
        return (await desk.ask("entities", asked.model, asked.texts))[1]

    @routes.post("/translate")
    async def translate(asked: schemas.Translate) -> list[schemas.Translated]:
        """Each text in the other language."""
        options = asked.model_dump(include={"beams", "penalty", "alignment"})
        _, found = await desk.ask("translate", asked.model, asked.texts, **options)
        return [_translated(own, looked) for own, looked in found]


def _translated(own: Translation, looked: Looked | None) -> schemas.Translated:
    alignment = None
    if looked is not None:
        alignment = schemas.Looked(
            source=looked.source, target=looked.target, weights=looked.weights.tolist()
        )
    return schemas.Translated(text=own.text, score=own.score, alignment=alignment)


def _looking(routes: APIRouter, desk: "Desk") -> None:
    @routes.post("/attention")
    async def attention(asked: schemas.Attention) -> dict[str, Any]:
        """What the model attends to; the weights are float32, in base64."""
        item = asked.model_dump(exclude={"model"})
        _, (found,) = await desk.ask("attention", asked.model, [item])
        data: dict[str, Any] = found
        return data

    @routes.get("/cards")
    def cards() -> list[dict[str, Any]]:
        """The models, what each can do, and its card."""
        return [
            {
                "name": name,
                "can": [verb.name for verb in VERBS.values() if verb.can(model)],
                "config": model.network.config.model_dump(mode="json"),
                "card": _card(model.path),
            }
            for name, model in desk.models.items()
        ]

    @routes.get("/runs")
    async def runs() -> list[str]:
        """The runs that are watched."""
        return list(desk.runs)

    @routes.get("/runs/{name}")
    def run(name: str) -> list[dict[str, Any]]:
        """What a run has written so far: all of it, or entries evenly over it and its end."""
        if name not in desk.runs:
            raise Refused(
                HTTPStatus.NOT_FOUND, f"run '{name[:80]}': not watched here.", "unknown_run"
            )
        path = desk.runs[name] / "metrics.jsonl"
        lines = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
        entries = [entry for line in lines if (entry := _entry(line)) is not None]
        step = -(-len(entries) // MOST)
        return [
            entry
            for number, entry in enumerate(entries)
            if number % step == 0 or entry.get("kind") != "train" or entry is entries[-1]
        ]


def _pairs(texts: list[Any]) -> list[tuple[str, str | None]]:
    return [(text, None) if isinstance(text, str) else (text[0], text[1]) for text in texts]


def _card(path: Path) -> str:
    file = path / "README.md"
    return file.read_text("utf-8", errors="replace")[:100_000] if file.exists() else ""


def _entry(line: str) -> dict[str, Any] | None:
    """A line that is still being written is not one yet."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
