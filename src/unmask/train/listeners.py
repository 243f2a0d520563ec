"""Metrics of a run -> TensorBoard and the callbacks of plugins."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unmask.system.errors import one_line, require
from unmask.train.evaluator import Entry


class TensorBoardWriter:
    """Writes the numbers of each metrics entry to TensorBoard."""

    def __init__(self, folder: Path) -> None:
        require("--tensorboard", "tensorboard", extra="tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.folder, self.writer_class = folder, SummaryWriter
        # Opened at the first entry, whose step tells which later points to purge: a resumed run
        # writes them again.
        self.writer: SummaryWriter | None = None

    def __call__(self, entry: Entry) -> None:
        """Write one entry."""
        step = int(entry["step"])
        if self.writer is None:
            self.writer = self.writer_class(str(self.folder), purge_step=step)
        for name, value in entry.items():
            if isinstance(value, int | float) and name != "step":
                self.writer.add_scalar(f"{entry['kind']}/{name}", value, step)
        self.writer.flush()


class CallbackListener:
    """Calls a plugin's callback with each entry; disables it for good after its first error."""

    def __init__(
        self, name: str, callback: Callable[[Mapping[str, Any]], object], say: Callable[[str], None]
    ) -> None:
        self.name, self.callback, self.say = name, callback, say
        self.failed = False

    def __call__(self, entry: dict[str, Any]) -> None:
        """Call the callback with one entry."""
        if self.failed:
            return
        try:
            # A deep, read-only copy: a callback must not be able to change what is recorded.
            self.callback(MappingProxyType(deepcopy(entry)))
        except Exception as error:
            self.failed = True
            self.say(
                f"warning: callback '{self.name}' failed and is not called again: {one_line(error)}"
            )
