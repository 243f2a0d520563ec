"""Records -> answers that grow token by token, to be shown before they are complete."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from unmask.tasks.results import AnswerSession

Answer = TypeVar("Answer")


class GrowingAnswers(Generic[Answer]):
    """The answers to some records of a task that generates, as they grow together."""

    def __init__(
        self,
        session: AnswerSession | None,
        parts: Sequence[tuple[int, Callable[[Sequence[object]], Answer]]],
    ) -> None:
        """Of each record, `parts` has the number of its windows and what decodes their values."""
        self.session, self.parts = session, parts

    @property
    def done(self) -> bool:
        """Are all answers complete?"""
        return self.session is None or self.session.done

    def step(self) -> None:
        """One token further, for every answer that is not complete."""
        if self.session is not None and not self.session.done:
            self.session.step()

    def answers(self) -> list[Answer]:
        """What there is of each answer so far."""
        values = iter(self.session.values() if self.session else [])
        return [decode(list(islice(values, count))) for count, decode in self.parts]
