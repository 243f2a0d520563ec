"""Files of pairs -> what a translator learns from and is scored on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.data.columns import Columns
from unmask.data.lines import REFUSE, Watcher
from unmask.data.parallel import Pair, find_folder, inferred, read_pairs
from unmask.data.statistics import leaks
from unmask.errors import DataError, SettingsError


@dataclass(frozen=True)
class PairSplit:
    """Pairs to learn from and to be scored on."""

    train: Sequence[Pair]
    dev: Sequence[Pair]
    notes: Sequence[str] = ()  # what was inferred about the files


@dataclass(frozen=True)
class PairFiles:
    """Where pairs are: a folder and two languages, or files."""

    folder: Path | None = None
    source: str | None = None  # languages of the folder
    target: str | None = None
    train: Sequence[Path] = ()
    dev: Sequence[Path] = ()
    columns: Columns = Columns()
    watcher: Watcher = REFUSE

    def read(self) -> PairSplit:
        """Read both sets of pairs."""
        train_paths, dev_paths = self.paths()
        train, of_train = self._pairs(train_paths)
        dev, of_dev = self._pairs(dev_paths)
        return PairSplit(train, dev, [of_train, of_dev, *leaks(train, dev, Path(dev_paths[0]))])

    def _pairs(self, paths: Sequence[Path]) -> tuple[list[Pair], str]:
        said = inferred(paths, self.columns)
        pairs = list(read_pairs(paths, self.columns, self.watcher))
        if not pairs:
            raise DataError(f"{paths[0]}: nothing to learn from in it. Is it the right file?")
        return pairs, f"{paths[0]}: {said}; {len(pairs):,} pairs"

    def paths(self) -> tuple[Sequence[Path], Sequence[Path]]:
        """The files to learn from, and those to be scored on."""
        if self.folder is None:
            if not self.train or not self.dev:
                raise SettingsError(
                    "nothing to learn from: need a folder with --from and --to, or --train and "
                    "--dev (one table each, or twice two parallel files)."
                )
            return self.train, self.dev
        if self.source is None or self.target is None:
            raise SettingsError(
                f"{self.folder}: a folder of two languages; need --from and --to, as in --from de "
                "--to en."
            )
        if self.train or self.dev:
            raise SettingsError("a folder, and --train or --dev: give one or the other.")
        found = find_folder(self.folder, self.source, self.target)
        return found["train"], found["dev"]
