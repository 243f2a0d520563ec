"""A comparison file -> its data and variants, validated without torch."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from unmask.data.labelled.parallel_files import PairFiles
from unmask.system.disk import check_output_folder
from unmask.system.settings import Settings, read_toml, validate


class Variant(Settings):
    """One of the recipes to compare, with its changes."""

    name: Annotated[str, Field(pattern=r"^[\w][\w .,=-]*$")]  # names its line and its folder
    recipe: str
    set: list[str] = Field(default_factory=list)


class ComparisonRecipe(Settings):
    """The data, and the variants to train on it."""

    out: str
    folder: str | None = None
    source: str | None = None
    target: str | None = None
    train: list[str] = Field(default_factory=list)
    dev: list[str] = Field(default_factory=list)
    set: list[str] = Field(default_factory=list)  # settings replaced in all variants
    variants: list[Variant]

    @model_validator(mode="after")
    def _check_unique_names(self) -> "ComparisonRecipe":
        names = [variant.name for variant in self.variants]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"need at least one variant, with unique names; got {names!r}.")
        return self

    @property
    def files(self) -> PairFiles:
        """The files with the sentence pairs."""
        return PairFiles(
            Path(self.folder) if self.folder else None,
            self.source,
            self.target,
            [Path(path) for path in self.train],
            [Path(path) for path in self.dev],
        )


def read_comparison(path: Path) -> ComparisonRecipe:
    """Read and validate a comparison file."""
    return validate(ComparisonRecipe, read_toml(path), where=str(path))


def check_folders(comparison: ComparisonRecipe) -> dict[str, Path]:
    """Return the folder of each variant; refuse one that cannot be written.

    All of them are checked before the first run, which may take hours.
    """
    folders = {variant.name: Path(comparison.out) / variant.name for variant in comparison.variants}
    for folder in folders.values():
        check_output_folder(folder, renamed=False)
    return folders
