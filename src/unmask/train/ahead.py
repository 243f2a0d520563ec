"""The batches of the next step, made in a thread while this one is computed.

It pays where something else computes, on a GPU. Batches are functions of where a run is, so that
it does not matter who makes them, or when.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from unmask.train.step import Piece

Pieces = tuple[Sequence[Piece], dict[str, int]]


class Source(Protocol):
    """Where the batches of a step come from."""

    def pieces(self, cursor: dict[str, int], step: int, progress: float) -> Pieces:
        """The batches of a step that are this process's, and the cursor to go on from."""


class Ahead:
    """A source that is one step ahead; `progress_at` says how far a run will be at a step."""

    def __init__(self, source: Source, progress_at: Callable[[int], float]) -> None:
        self.source, self.progress_at = source, progress_at
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self.made: tuple[dict[str, int], int, Future[Pieces]] | None = None

    def pieces(self, cursor: dict[str, int], step: int, progress: float) -> Pieces:
        """See Source."""
        if self.made is not None and self.made[:2] == (cursor, step):
            pieces, then = self.made[2].result()
        else:  # the first step, or one that was given up
            pieces, then = self.source.pieces(cursor, step, progress)
        following = self.thread.submit(
            self.source.pieces, then, step + 1, self.progress_at(step + 1)
        )
        self.made = then, step + 1, following
        return pieces, then
