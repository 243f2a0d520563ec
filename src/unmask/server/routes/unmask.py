"""unmask's own routes: the commands `fill`, `next`, `look`, `predict` and `translate` as JSON."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter

from unmask.infer.loaded import TokenPrediction
from unmask.infer.model import Model
from unmask.server import schemas
from unmask.server.limits import RequestError
from unmask.server.service import Service, capabilities
from unmask.tasks.classify import Labels
from unmask.tasks.ner import FoundEntities
from unmask.tasks.qa import QaAnswer
from unmask.tasks.regress import Number
from unmask.tasks.translate import AskTranslation, Translate
from unmask.train.run_folder import read_metrics

MAX_ENTRIES = 1500  # training entries of a run that are sent, at most


def router(desk: Service) -> APIRouter:
    """Return unmask's own routes, for the models and runs of a service."""
    routes = APIRouter(tags=["unmask"])
    _asking(routes, desk)
    _looking(routes, desk)
    return routes


def _asking(routes: APIRouter, desk: Service) -> None:
    @routes.post("/fill")
    async def fill(asked: schemas.FillRequest) -> list[list[TokenPrediction]]:
        """Predict masked tokens: for each [MASK] in the text, the most likely tokens."""
        guesses: list[list[TokenPrediction]]
        (guesses,) = await desk.ask("fill", asked, [asked.text])
        return guesses

    @routes.post("/next")
    async def next_sentence(asked: schemas.NextSentenceRequest) -> schemas.NextSentence:
        """Predict how likely the second sentence is to follow the first."""
        verdict: schemas.NextSentence
        (verdict,) = await desk.ask("next", asked, [(asked.first, asked.second)])
        return verdict

    @routes.post("/classify")
    async def classify(asked: schemas.ClassifyRequest) -> list[Labels]:
        """Classify texts or pairs of texts: for each, its labels and their probabilities."""
        return await desk.ask("classify", asked, asked.texts)

    @routes.post("/score")
    async def score(asked: schemas.ClassifyRequest) -> list[float]:
        """Score texts or pairs of texts with a regression model: one number for each."""
        found: list[Number] = await desk.ask("score", asked, asked.texts)
        return [number.score for number in found]

    @routes.post("/answer")
    async def answer(asked: schemas.AnswerRequest) -> QaAnswer:
        """Answer a question with a span of a passage (extractive question answering).

        text is empty if the model finds no answer.
        """
        found: QaAnswer
        (found,) = await desk.ask("answer", asked, [(asked.question, asked.context)])
        return found

    @routes.post("/entities")
    async def entities(asked: schemas.EntitiesRequest) -> list[FoundEntities]:
        """Find named entities: for each text its entities, and a tag for each word."""
        return await desk.ask("entities", asked, asked.texts)

    @routes.post("/translate")
    async def translate(asked: schemas.TranslateRequest) -> list[schemas.TranslationResponse]:
        """Translate texts, in order."""
        options = asked.model_dump(include=set(AskTranslation.options))
        asks = [AskTranslation(text=text, **options) for text in asked.texts]
        found = await desk.ask_task(Translate.name, asked, asks)
        return [schemas.TranslationResponse.model_validate(answer) for answer, _ in found]


def _looking(routes: APIRouter, desk: Service) -> None:
    @routes.post("/attention")
    async def attention(asked: schemas.AttentionRequest) -> dict[str, Any]:
        """Return attention weights, token importance and the model's answer, optionally ablated.

        The weights are float32 in base64, of shape [layers, heads, tokens, tokens]. Of a long text,
        128 tokens are returned, beginning with token number start.
        """
        item = asked.model_dump(include={"text", "second", "start", "mute"})
        data: dict[str, Any]
        (data,) = await desk.ask("attention", asked, [item])
        return data

    @routes.get("/cards")
    def cards() -> list[dict[str, Any]]:
        """List the models: what each can do, its task, its settings and its model card."""
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
        """List the names of the training runs that the server was started with (--run)."""
        return list(desk.runs)

    @routes.get("/runs/{name}")
    def run(name: str) -> list[dict[str, Any]]:
        """Return the metrics of a training run so far, also while it is training.

        Of a long run, the training entries are thinned out evenly. Its last entry and all
        evaluations are always included.
        """
        if name not in desk.runs:
            raise RequestError(404, f"run '{name[:80]}': not watched here.", "unknown_run")
        entries = read_metrics(desk.runs[name])
        step = -(-len(entries) // MAX_ENTRIES)  # rounded up, so that at most MOST remain
        return [
            entry
            for number, entry in enumerate(entries)
            if number % step == 0 or entry.get("kind") != "train" or entry is entries[-1]
        ]


def _task(desk: Service, model: Model) -> dict[str, Any] | None:
    """Describe a model's task, with the schema of its questions, for the form on the page."""
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
