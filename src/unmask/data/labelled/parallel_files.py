"""A folder with two languages, or single files -> the paths of training and dev pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.data.labelled.parallel import files_of_languages
from unmask.system.errors import SettingsError


@dataclass(frozen=True)
class PairFiles:
    """Where parallel text is: a folder with two languages, or files for training and dev."""

    folder: Path | None = None
    source: str | None = None  # languages of the folder
    target: str | None = None
    train: Sequence[Path] = ()
    dev: Sequence[Path] = ()

    def paths(self, *, needs_dev: bool = True) -> tuple[Sequence[Path], Sequence[Path]]:
        """Return the training files and the dev files; none of these if they are not needed."""
        if self.folder is None:
            if not self.train or (needs_dev and not self.dev):
                needed = "--train and --dev" if needs_dev else "--train"
                raise SettingsError(
                    f"no training data: give a folder with --from and --to, or {needed} (one table "
                    "each, or two parallel files each)."
                )
            return self.train, self.dev
        if self.source is None or self.target is None:
            raise SettingsError(
                f"{self.folder}: a folder needs --from and --to, the two languages to read, as in "
                "--from de --to en."
            )
        if self.train or self.dev:
            raise SettingsError("both a folder and --train or --dev: give one or the other.")
        files = files_of_languages(self.folder, self.source, self.target)
        return files["train"], files["dev"]
