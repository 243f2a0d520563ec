"""Messages and progress of a job -> wherever the caller wants them; silent by default."""

import logging

LOGGER = logging.getLogger("unmask")
LOGGER.addHandler(logging.NullHandler())  # a library prints nothing until its user asks for it


class Console:
    """Receiver of a job's messages and progress: messages go to `logging`, progress is dropped.

    To see the messages of jobs that are called from Python, configure the logger "unmask", for
    instance with `logging.basicConfig(level=logging.INFO)`.
    """

    def say(self, line: str) -> None:
        """Report one line, such as a warning or what was inferred from the data."""
        # Jobs report plain lines: this prefix is the only sign of a warning.
        level = logging.WARNING if line.startswith("warning") else logging.INFO
        LOGGER.log(level, line)

    def progress(
        self,
        what: str,
        unit: str,
        done: int,
        total: int | None = None,
        *,
        note: str = "",
        seconds_left: float | None = None,
    ) -> None:
        """Report how far the stage `what` has come; a new name starts a new stage.

        `note` is shown beside the numbers. `seconds_left` replaces the estimate from the rate, for
        jobs that end by the clock.
        """

    def finish(self) -> None:
        """End the current stage and remove its progress bar."""
