"""Records -> answers that grow token by token, for showing them before they are complete."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from unmask.tasks.results import AnswerSession

Answer = TypeVar("Answer")


class GrowingAnswers(Generic[Answer]):
    """The answers to some records while one session generates them together."""

    def __init__(
        self,
        session: AnswerSession | None,
        parts: Sequence[tuple[int, Callable[[Sequence[object]], Answer]]],
    ) -> None:
        """`parts` has the number of windows of each record, and a function that decodes them."""
        self.session, self.parts = session, parts

    @property
    def done(self) -> bool:
        """Whether all answers are complete."""
        return self.session is None or self.session.done

    def step(self) -> None:
        """Generate one more token of every incomplete answer."""
        if self.session is not None and not self.session.done:
            self.session.step()

    def answers(self) -> list[Answer]:
        """Return every answer as far as it has been generated."""
        # The session knows only windows, in the order of the records: each record takes its own off
        # the front. A record without windows takes none and is decoded from an empty list.
        values = iter(self.session.values() if self.session else [])
        return [decode(list(islice(values, count))) for count, decode in self.parts]
