"""Files of pairs -> what a translator learns from and is scored on. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.data.columns import Columns
from unmask.data.lines import REFUSE, Watcher
from unmask.data.parallel import Pair, find_folder, inferred, read_pairs
from unmask.data.statistics import leaks
from unmask.errors import DataError, SettingsError


@dataclass(frozen=True)
class PairData:
    """What there is to learn from and to be scored on."""

    train: Sequence[Pair]
    dev: Sequence[Pair]
    said: Sequence[str] = ()  # what was inferred about the files


@dataclass(frozen=True)
class Files:
    """Where pairs are: a folder and two languages, or files."""

    folder: Path | None = None
    source: str | None = None  # languages of the folder
    target: str | None = None
    train: Sequence[Path] = ()
    dev: Sequence[Path] = ()
    columns: Columns = Columns()


def read_data(files: Files, watcher: Watcher = REFUSE) -> PairData:
    """Both sets of pairs, and what was inferred about them."""
    if files.folder is not None:
        if files.source is None or files.target is None:
            raise SettingsError(
                f"{files.folder}: a folder of two languages; need --from and --to, as in --from de "
                "--to en."
            )
        if files.train or files.dev:
            raise SettingsError("a folder, and --train or --dev: give one or the other.")
        found = find_folder(files.folder, files.source, files.target)
        train, dev = found["train"], found["dev"]
    elif not files.train or not files.dev:
        raise SettingsError(
            "nothing to learn from: need a folder with --from and --to, or --train and --dev (one "
            "table each, or twice two parallel files)."
        )
    else:
        train, dev = tuple(files.train), tuple(files.dev)  # type: ignore[assignment]
    pairs, said = [], []
    for paths in (train, dev):
        said.append(f"{paths[0]}: {inferred(paths, files.columns)}")
        pairs.append(list(read_pairs(paths, files.columns, watcher)))
        if not pairs[-1]:
            raise DataError(f"{paths[0]}: nothing to learn from in it. Is it the right file?")
        said[-1] += f"; {len(pairs[-1]):,} pairs"
    return PairData(pairs[0], pairs[1], [*said, *leaks(pairs[0], pairs[1], Path(dev[0]))])
