"""Routes for the tasks of the models that are served, made from each task's `Ask`.

`POST /ask/TASK` takes any number of questions and gives an answer to each, with what a page needs
to draw it. A task that generates can stream: one question, and its answer as it grows.
"""

import json
from collections.abc import AsyncIterator, Sequence
from types import GenericAlias
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, create_model

from unmask.server.limits import RequestError, invalid
from unmask.server.schemas import MANY, Request, Truncate
from unmask.server.service import Service
from unmask.tasks.asks import Ask
from unmask.tasks.base import Task
from unmask.tasks.views import View

EVENTS = "text/event-stream"


class Questions(Request):
    """What any task is asked; each has its own kind of items."""

    items: Sequence[Ask]
    truncate: Truncate = False


class StreamQuestions(Questions):
    """The same of a task that generates."""

    stream: bool = Field(False, description="Send the answer as it grows.")


def router(desk: Service) -> APIRouter:
    """A route for each task that is served."""
    routes = APIRouter(prefix="/ask", tags=["tasks"])
    tasks: dict[str, Task[Any, Any]] = {}
    for model in desk.models.values():
        if model.fine_tuned:
            tasks.setdefault(model.task.name, model.task)
    for task in tasks.values():
        _route(routes, desk, task)
    return routes


def _route(routes: APIRouter, desk: Service, task: Task[Any, Any]) -> None:
    """The route of one task, whose schemas are its own."""
    name, title = task.name, task.name.capitalize()
    base = StreamQuestions if task.generates else Questions
    items: tuple[Any, Any] = GenericAlias(list, (task.Ask,)), Field(max_length=MANY)
    asked_type = create_model(f"{title}Questions", __base__=base, items=items)
    answer_type = create_model(f"{title}Answer", answer=(task.answers, ...), view=(View, ...))

    async def ask(asked: Questions) -> StreamingResponse | list[BaseModel]:
        if isinstance(asked, StreamQuestions) and asked.stream:
            return _streamed(desk, name, asked)
        found = await desk.ask_task(name, asked, asked.items)
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


def _streamed(desk: Service, name: str, asked: Questions) -> StreamingResponse:
    """Server-sent events: one for each step that has changed the answer."""
    if len(asked.items) != 1:
        raise invalid(f"stream: {len(asked.items)} items; need one. Send each by itself.")
    if refused := desk.batcher.full():  # it must come before the first byte
        raise refused
    pieces = desk.stream_task(name, asked, asked.items[0])

    async def events() -> AsyncIterator[str]:
        before, last = "", json.dumps({"done": True})
        try:
            async for _, view in pieces:
                now = view.model_dump_json()
                if now != before:
                    yield f"data: {now}\n\n"
                before = now
        except RequestError as refused:  # too late for a status
            last = json.dumps(refused.body(f"/ask/{name}"))
        yield f"data: {last}\n\n"

    return StreamingResponse(events(), media_type=EVENTS)
