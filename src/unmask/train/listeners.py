"""What is given every entry of a run's metrics: TensorBoard, and the callbacks of plugins."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unmask.system.errors import one_line, require
from unmask.train.evaluator import Entry


class TensorBoardWriter:
    """Writes the numbers of each entry; what a resumed run will write again is purged."""

    def __init__(self, folder: Path) -> None:
        require("--tensorboard", "tensorboard", extra="tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.folder, self.make = folder, SummaryWriter
        self.writer: SummaryWriter | None = None

    def __call__(self, entry: Entry) -> None:
        """Add one entry of the metrics."""
        step = int(entry["step"])
        if self.writer is None:
            self.writer = self.make(str(self.folder), purge_step=step)
        for name, value in entry.items():
            if isinstance(value, int | float) and name != "step":
                self.writer.add_scalar(f"{entry['kind']}/{name}", value, step)
        self.writer.flush()


class CallbackListener:
    """Calls it with a copy of each entry. One that fails is not called again; the run goes on."""

    def __init__(
        self, name: str, callback: Callable[[Mapping[str, Any]], object], say: Callable[[str], None]
    ) -> None:
        self.name, self.callback, self.say = name, callback, say
        self.failed = False

    def __call__(self, entry: dict[str, Any]) -> None:
        """Show one entry."""
        if self.failed:
            return
        try:
            self.callback(MappingProxyType(deepcopy(entry)))
        except Exception as error:
            self.failed = True
            self.say(
                f"warning: callback '{self.name}' failed and is not called again: {one_line(error)}"
            )
