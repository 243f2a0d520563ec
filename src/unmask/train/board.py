"""Metrics -> TensorBoard, an extra: every number of metrics.jsonl, as it comes."""

from pathlib import Path
from typing import Any

from unmask.errors import UserError


class Board:
    """Writes the numbers of each entry; what a resumed run will write again is purged."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "--tensorboard: TensorBoard is not installed. Install it: "
                "pip install 'unmask[tensorboard]'"
            ) from None
        self.folder, self.make = folder, SummaryWriter
        self.writer: Any = None

    def __call__(self, entry: dict[str, Any]) -> None:
        """Add one entry of the metrics."""
        step = int(entry["step"])
        if self.writer is None:
            self.writer = self.make(str(self.folder), purge_step=step)
        for name, value in entry.items():
            if isinstance(value, int | float) and name != "step":
                self.writer.add_scalar(f"{entry['kind']}/{name}", value, step)
        self.writer.flush()
