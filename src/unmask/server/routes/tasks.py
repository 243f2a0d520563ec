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

    stream: bool = Field(False, description="Send the answer as it grows.")


def router(service: Service) -> APIRouter:
    """Return one route for each task of the fine-tuned models."""
    routes = APIRouter(prefix="/ask", tags=["tasks"])
    tasks: dict[str, Task[Any, Any]] = {}
    for model in service.models.values():
        if model.fine_tuned:
            tasks.setdefault(model.task.name, model.task)
    # One route per task, not per model: the request chooses among the models of a task.
    for task in tasks.values():
        _route(routes, service, task)
    return routes


def _route(routes: APIRouter, service: Service, task: Task[Any, Any]) -> None:
    """Add the route of a task, with request and response types made for it."""
    name, title = task.name, task.name.capitalize()
    base = StreamQuestions if task.generates else Questions
    items: tuple[Any, Any] = GenericAlias(list, (task.Ask,)), Field(max_length=MAX_ITEMS)
    asked_type = create_model(f"{title}Questions", __base__=base, items=items)
    answer_type = create_model(f"{title}Answer", answer=(task.answers, ...), view=(View, ...))

    # FastAPI reads the types from `__annotations__`, which are replaced below: a static signature
    # cannot name types that are made here.
    async def ask(asked: Questions) -> StreamingResponse | list[BaseModel]:
        if isinstance(asked, StreamQuestions) and asked.stream:
            return _streamed(service, name, asked)
        found = await service.ask_task(name, asked, asked.items)
        return [answer_type(answer=answer, view=view) for answer, view in found]

    streamed: dict[int | str, dict[str, Any]] = {
        200: {"content": {EVENTS: {"schema": {"type": "string"}}}}
    }
    answered = GenericAlias(list, (answer_type,))
    ask.__annotations__ = {"asked": asked_type, "return": answered}
    ask.__doc__ = f"Answer questions of the task {name}."
    routes.add_api_route(
        f"/{name}",
        ask,
        methods=["POST"],
        name=f"ask_{name}",
        responses=streamed if task.generates else None,
        response_model=answered,
    )


def _streamed(service: Service, name: str, asked: Questions) -> StreamingResponse:
    """Stream the answer to one question as server-sent events, one per change of its view.

    The last event is {"done": true} or an error.
    """
    if len(asked.items) != 1:
        raise invalid(f"stream: {len(asked.items)} items; need one. Send each by itself.")
    # A stream begins with status 200, so whatever can be refused is refused before.
    if refused := service.batcher.full():
        raise refused
    pieces = service.stream_task(name, asked, asked.items[0])

    async def events() -> AsyncIterator[str]:
        before, last = "", json.dumps({"done": True})
        try:
            async for _, view in pieces:
                now = view.model_dump_json()
                if now != before:  # a step may change nothing that the view shows
                    yield f"data: {now}\n\n"
                before = now
        except RequestError as refused:  # status 200 was sent already
            last = json.dumps(refused.body(f"/ask/{name}"))
        yield f"data: {last}\n\n"

    return StreamingResponse(events(), media_type=EVENTS)
