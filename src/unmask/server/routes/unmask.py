"""unmask's own routes: the commands `fill`, `next`, `look`, `predict` and `translate` as JSON."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter

from unmask.infer.loaded import TokenPrediction
from unmask.infer.model import Model
from unmask.server import schemas
from unmask.server.capabilities import capabilities
from unmask.server.limits import RequestError
from unmask.server.service import Service
from unmask.tasks.classify import Labels
from unmask.tasks.ner import FoundEntities
from unmask.tasks.qa import QaAnswer
from unmask.tasks.regress import Number
from unmask.tasks.translate import AskTranslation, Translate
from unmask.train.run_folder import read_metrics

MAX_ENTRIES = 1500  # training entries of a run that are sent, at most


def router(service: Service) -> APIRouter:
    """Return unmask's own routes, for the models and runs of a service."""
    routes = APIRouter(tags=["unmask"])
    _add_task_routes(routes, service)
    _add_inspection_routes(routes, service)
    return routes


def _add_task_routes(routes: APIRouter, service: Service) -> None:
    @routes.post("/fill")
    async def fill(request: schemas.FillRequest) -> list[list[TokenPrediction]]:
        """Predict masked tokens: for each [MASK] in the text, the most likely tokens."""
        predictions: list[list[TokenPrediction]]
        (predictions,) = await service.ask("fill", request, [request.text])
        return predictions

    @routes.post("/next")
    async def next_sentence(request: schemas.NextSentenceRequest) -> schemas.NextSentence:
        """Predict how likely the second sentence is to follow the first."""
        prediction: schemas.NextSentence
        (prediction,) = await service.ask("next", request, [(request.first, request.second)])
        return prediction

    @routes.post("/classify")
    async def classify(request: schemas.ClassifyRequest) -> list[Labels]:
        """Classify texts or pairs of texts: for each, its labels and their probabilities."""
        return await service.ask("classify", request, request.texts)

    @routes.post("/score")
    async def score(request: schemas.ClassifyRequest) -> list[float]:
        """Score texts or pairs of texts with a regression model: one number for each."""
        numbers: list[Number] = await service.ask("score", request, request.texts)
        return [number.score for number in numbers]

    @routes.post("/answer")
    async def answer(request: schemas.AnswerRequest) -> QaAnswer:
        """Answer a question with a span of a passage (extractive question answering).

        text is empty if the model finds no answer.
        """
        best_answer: QaAnswer
        (best_answer,) = await service.ask("answer", request, [(request.question, request.context)])
        return best_answer

    @routes.post("/entities")
    async def entities(request: schemas.EntitiesRequest) -> list[FoundEntities]:
        """Find named entities: for each text its entities, and a tag for each word."""
        return await service.ask("entities", request, request.texts)

    @routes.post("/translate")
    async def translate(request: schemas.TranslateRequest) -> list[schemas.TranslationResponse]:
        """Translate texts, in order."""
        options = request.model_dump(include=set(AskTranslation.options))
        asks = [AskTranslation(text=text, **options) for text in request.texts]
        translations = await service.ask_task(Translate.name, request, asks)
        return [schemas.TranslationResponse.model_validate(answer) for answer, _ in translations]


def _add_inspection_routes(routes: APIRouter, service: Service) -> None:
    @routes.post("/attention")
    async def attention(request: schemas.AttentionRequest) -> dict[str, Any]:
        """Return attention weights, token importance and the model's answer, optionally ablated.

        The weights are float32 in base64, of shape [layers, heads, tokens, tokens]. Of a long text,
        128 tokens are returned, beginning with token number start.
        """
        item = request.model_dump(include={"text", "second", "start", "mute"})
        data: dict[str, Any]
        (data,) = await service.ask("attention", request, [item])
        return data

    @routes.get("/cards")
    def cards() -> list[dict[str, Any]]:
        """List the models: what each can do, its task, its settings and its model card."""
        return [
            {
                "name": name,
                "can": capabilities(model),
                "task": _task(service, model),
                "config": model.network.config.model_dump(mode="json"),
                "card": _card(model.path),
            }
            for name, model in service.models.items()
        ]

    @routes.get("/runs")
    async def runs() -> list[str]:
        """List the names of the training runs that the server was started with (--run)."""
        return list(service.runs)

    @routes.get("/runs/{name}")
    def run(name: str) -> list[dict[str, Any]]:
        """Return the metrics of a training run so far, also while it is training.

        Of a long run, the training entries are thinned out evenly. Its last entry and all
        evaluations are always included.
        """
        if name not in service.runs:
            message = f"run '{name[:80]}' is not served here. Add it with --run."
            raise RequestError(404, message, "unknown_run")
        entries = read_metrics(service.runs[name])
        step = -(-len(entries) // MAX_ENTRIES)  # rounded up, so that at most MAX_ENTRIES remain
        return [
            entry
            for number, entry in enumerate(entries)
            if number % step == 0 or entry.get("kind") != "train" or entry is entries[-1]
        ]


def _task(service: Service, model: Model) -> dict[str, Any] | None:
    """Describe a model's task, with the schema of its questions, for the form on the page."""
    if not model.fine_tuned:
        return None
    task = model.task
    title = task.title or task.name.replace("_", " ").capitalize()
    return {
        "name": task.name,
        "title": title,
        "generates": task.generates,
        "ask": service.schema(task),
    }


def _card(path: Path) -> str:
    file = path / "README.md"
    return file.read_text("utf-8", errors="replace")[:100_000] if file.exists() else ""
