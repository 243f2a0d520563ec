"""Tasks of the served models -> a route POST /ask/TASK for each, including tasks of plugins.

The schemas of a route come from its task's `Ask` and answer types. Each answer has a view, which
tells a client how to draw it. A task that generates text can stream the answer to one question.
"""

import json
from collections.abc import AsyncIterator, Sequence
from types import GenericAlias
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, create_model

from unmask.server.limits import RequestError, invalid
from unmask.server.schemas import MAX_ITEMS, Request, Truncate
from unmask.server.service import Service
from unmask.tasks.asks import Ask
from unmask.tasks.base import Task
from unmask.tasks.views import View

EVENTS = "text/event-stream"


class Questions(Request):
    """Request of any task; the route of a task replaces `items` by questions of its own type."""

    items: Sequence[Ask]
    truncate: Truncate = False


class StreamQuestions(Questions):
    """Request of a task that generates, whose answer can be streamed."""

    stream: bool = Field(False, description="Stream the answer while it is generated.")


def router(service: Service) -> APIRouter:
    """Return one route for each task of the fine-tuned models."""
    routes = APIRouter(prefix="/ask", tags=["tasks"])
    tasks: dict[str, Task[Any, Any]] = {}
    for model in service.models.values():
        if model.fine_tuned:
            tasks.setdefault(model.task.name, model.task)
    # One route per task, not per model: the request chooses among the models of a task.
    for task in tasks.values():
        _add_route(routes, service, task)
    return routes


def _add_route(routes: APIRouter, service: Service, task: Task[Any, Any]) -> None:
    """Add the route of a task, with request and response types made for it."""
    name, title = task.name, task.name.capitalize()
    base = StreamQuestions if task.generates else Questions
    items: tuple[Any, Any] = GenericAlias(list, (task.Ask,)), Field(max_length=MAX_ITEMS)
    questions_type = create_model(f"{title}Questions", __base__=base, items=items)
    answer_type = create_model(f"{title}Answer", answer=(task.answers, ...), view=(View, ...))

    # FastAPI reads the types from `__annotations__`, which are replaced below: a static signature
    # cannot name types that are made here.
    async def ask(questions: Questions) -> StreamingResponse | list[BaseModel]:
        if isinstance(questions, StreamQuestions) and questions.stream:
            return _stream_answer(service, name, questions)
        answers = await service.ask_task(name, questions, questions.items)
        return [answer_type(answer=answer, view=view) for answer, view in answers]

    stream_responses: dict[int | str, dict[str, Any]] = {
        200: {"content": {EVENTS: {"schema": {"type": "string"}}}}
    }
    response_type = GenericAlias(list, (answer_type,))
    ask.__annotations__ = {"questions": questions_type, "return": response_type}
    ask.__doc__ = f"Answer questions of the task {name}."
    routes.add_api_route(
        f"/{name}",
        ask,
        methods=["POST"],
        name=f"ask_{name}",
        responses=stream_responses if task.generates else None,
        response_model=response_type,
    )


def _stream_answer(service: Service, name: str, questions: Questions) -> StreamingResponse:
    """Stream the answer to one question as server-sent events, one per change of its view.

    The last event is {"done": true} or an error.
    """
    if len(questions.items) != 1:
        raise invalid(
            f"stream: got {len(questions.items)} items; need exactly one. Send each in its own "
            "request."
        )
    # A stream begins with status 200, so whatever can be refused is refused before.
    if error := service.batcher.full():
        raise error
    partial_answers = service.stream_task(name, questions, questions.items[0])

    async def events() -> AsyncIterator[str]:
        previous, final = "", json.dumps({"done": True})
        try:
            async for _, view in partial_answers:
                current = view.model_dump_json()
                if current != previous:  # a step may change nothing that the view shows
                    yield f"data: {current}\n\n"
                previous = current
        except RequestError as error:  # status 200 was sent already
            final = json.dumps(error.body(f"/ask/{name}"))
        yield f"data: {final}\n\n"

    return StreamingResponse(events(), media_type=EVENTS)
