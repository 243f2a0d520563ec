"""Records -> answers that grow token by token, for who is too impatient for whole ones."""

from collections.abc import Iterable
from itertools import count, islice
from typing import Generic

from unmask.tasks.base import Answer, Record, Task
from unmask.tasks.engine import Forward
from unmask.text.tokens import Tokens


class Growing(Generic[Record, Answer]):
    """The answers to some records of a task that generates, as they grow together."""

    def __init__(
        self,
        forward: Forward,
        tokens: Tokens,
        task: Task[Record, Answer],
        records: Iterable[Record],
    ) -> None:
        self.task, self.tokens = task, tokens
        self.records = list(task.windows(records, tokens, numbers=count()))
        windows = [window for _, own in self.records for window in own]
        self.session = task.session(forward, windows, tokens) if windows else None

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
        return [
            self.task.decode(record, own, list(islice(values, len(own))), self.tokens)
            for record, own in self.records
        ]
