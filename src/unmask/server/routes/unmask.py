"""Routes of our own: each is a verb of the command line, with its name and its answers."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter

from unmask.infer.model import Model, TokenPrediction
from unmask.server import schemas
from unmask.server.limits import RequestError
from unmask.server.service import Service, capabilities
from unmask.tasks.classify import Labels
from unmask.tasks.ner import FoundEntities
from unmask.tasks.qa import QaAnswer
from unmask.tasks.regress import Number
from unmask.tasks.translate import AskTranslation, Translate
from unmask.train.run_folder import read_metrics

MOST = 1500  # entries of a run's training that are sent


def router(desk: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["unmask"])
    _asking(routes, desk)
    _looking(routes, desk)
    return routes


def _asking(routes: APIRouter, desk: Service) -> None:
    @routes.post("/fill")
    async def fill(asked: schemas.FillRequest) -> list[list[TokenPrediction]]:
        """The likeliest tokens for each [MASK], best first."""
        guesses: list[list[TokenPrediction]]
        (guesses,) = await desk.ask("fill", asked, [asked.text])
        return guesses

    @routes.post("/next")
    async def next_sentence(asked: schemas.NextSentenceRequest) -> schemas.NextSentence:
        """How likely the second sentence is to have followed the first."""
        verdict: schemas.NextSentence
        (verdict,) = await desk.ask("next", asked, [(asked.first, asked.second)])
        return verdict

    @routes.post("/classify")
    async def classify(asked: schemas.ClassifyRequest) -> list[Labels]:
        """The labels of each text or pair."""
        return await desk.ask("classify", asked, asked.texts)

    @routes.post("/score")
    async def score(asked: schemas.ClassifyRequest) -> list[float]:
        """The number that belongs to each text or pair."""
        found: list[Number] = await desk.ask("score", asked, asked.texts)
        return [number.score for number in found]

    @routes.post("/answer")
    async def answer(asked: schemas.AnswerRequest) -> QaAnswer:
        """The stretch of a passage that answers a question."""
        found: QaAnswer
        (found,) = await desk.ask("answer", asked, [(asked.question, asked.context)])
        return found

    @routes.post("/entities")
    async def entities(asked: schemas.EntitiesRequest) -> list[FoundEntities]:
        """The names in each text."""
        return await desk.ask("entities", asked, asked.texts)

    @routes.post("/translate")
    async def translate(asked: schemas.TranslateRequest) -> list[schemas.TranslationResponse]:
        """Each text in the other language."""
        options = asked.model_dump(include=set(AskTranslation.options))
        asks = [AskTranslation(text=text, **options) for text in asked.texts]
        found = await desk.ask_task(Translate.name, asked, asks)
        return [schemas.TranslationResponse.model_validate(answer) for answer, _ in found]


def _looking(routes: APIRouter, desk: Service) -> None:
    @routes.post("/attention")
    async def attention(asked: schemas.AttentionRequest) -> dict[str, Any]:
        """What the model attends to; the weights are float32, in base64."""
        item = asked.model_dump(include={"text", "second", "start", "mute"})
        data: dict[str, Any]
        (data,) = await desk.ask("attention", asked, [item])
        return data

    @routes.get("/cards")
    def cards() -> list[dict[str, Any]]:
        """The models, what each can do, and its card."""
        return [
            {
                "name": name,
                "can": capabilities(model),
                "task": _task(desk, model),
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
            raise RequestError(404, f"run '{name[:80]}': not watched here.", "unknown_run")
        entries = read_metrics(desk.runs[name])
        step = -(-len(entries) // MOST)
        return [
            entry
            for number, entry in enumerate(entries)
            if number % step == 0 or entry.get("kind") != "train" or entry is entries[-1]
        ]


def _task(desk: Service, model: Model) -> dict[str, Any] | None:
    """The model's task and the schema of its questions, from which the page makes a form."""
    if not model.fine_tuned:
        return None
    task = model.task
    title = task.title or task.name.replace("_", " ").capitalize()
    return {
        "name": task.name,
        "title": title,
        "generates": task.generates,
        "ask": desk.schema(task),
    }


def _card(path: Path) -> str:
    file = path / "README.md"
    return file.read_text("utf-8", errors="replace")[:100_000] if file.exists() else ""
