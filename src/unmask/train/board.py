"""Metrics -> TensorBoard, an extra: every number of metrics.jsonl, as it comes."""

from pathlib import Path

from unmask.system.errors import need
from unmask.train.evaluator import Entry


class Board:
    """Writes the numbers of each entry; what a resumed run will write again is purged."""

    def __init__(self, folder: Path) -> None:
        need("--tensorboard", "tensorboard", extra="tensorboard")
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
