"""Where a job reports to: lines about what happens, and progress. The default is silent."""

import logging

LOGGER = logging.getLogger("unmask")
LOGGER.addHandler(logging.NullHandler())  # a library prints nothing until its user asks for it


class Console:
    """Where a job reports to. This one is silent: lines go to `logging`, progress nowhere.

    To see the lines of jobs that are called from Python, configure the logger "unmask", for
    instance with `logging.basicConfig(level=logging.INFO)`.
    """

    def say(self, line: str) -> None:
        """Report one line, such as what was inferred from the data or a warning."""
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
        """Report how far stage `what` is; a new name starts a new stage.

        `note` is shown beside the numbers. `seconds_left` replaces the estimate from the rate, for
        jobs that end by the clock.
        """

    def finish(self) -> None:
        """End the current stage; its bar disappears."""
