"""The list of what a run wrote into its folder; `--overwrite` deletes exactly that.

    .written    recipe.toml
                checkpoints/step-500
                model

A name is listed before its file or folder is written, so a killed run leaves nothing unlisted.
Inside a listed folder, the files that its manifest names belong to the run. Everything else in the
run's folder belongs to the user.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from unmask.system.disk import write_file
from unmask.system.errors import FolderError, UserError
from unmask.system.manifest import MODEL_LIMIT, MODEL_MANIFEST, read_with_digest

LIST, RECIPE = ".written", "recipe.toml"
TENSORBOARD = "tensorboard"
SHOWN = 5  # names listed in an error message
LEFT_OVER = re.compile(r"\.(.+)\.tmp-.+")  # temporary file or folder of a killed writer
DAMAGED = re.compile(r"damaged-(step-\d+)-[0-9a-f]{6}")  # a checkpoint set aside as damaged
EVENTS = "events.out.tfevents.*"
# Files that belong to a model or checkpoint folder if its manifest is missing or damaged.
USUAL_FILES = {
    MODEL_MANIFEST,
    "config.json",
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
}
_TOKENIZER_FILES = set(
    "vocab.txt tokenizer.json tokenizer_config.json special_tokens_map.json".split()
)
USUAL_FILES |= {"README.md", *_TOKENIZER_FILES, *(f"target/{name}" for name in _TOKENIZER_FILES)}


@dataclass
class FolderContents:
    """Contents of a run's folder: what unmask wrote, leftovers of killed writers, users' files."""

    # Folders before their contents, manifests before the files they name: `delete` goes backwards.
    own: list[Path] = field(default_factory=list)
    left_over: list[Path] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def read_list(folder: Path) -> list[str] | None:
    """Return the names that are listed in a folder, or None if it has no list."""
    path = folder / LIST
    return path.read_text("utf-8", "replace").split("\n")[:-1] if path.is_file() else None


def write_list(folder: Path, names: Iterable[str]) -> None:
    """Replace the list of a folder."""
    write_file(folder / LIST, "".join(f"{name}\n" for name in names).encode("utf-8"))


def add_to_list(folder: Path, name: str) -> None:
    """List a name that is about to be written, unless the user already has a file of that name."""
    names = read_list(folder) or []
    if name not in names and not os.path.lexists(folder / name):
        write_list(folder, [*names, name])


def survey(folder: Path, names: Collection[str], holders: Collection[str] = ()) -> FolderContents:
    """Classify everything in a folder by who wrote it, given the listed names.

    `holders` are folders that exist only to contain listed ones, and may be empty. Links are not
    followed: a run creates none, so every link belongs to the user.
    """
    contents = FolderContents()
    _walk(folder, "", {*names}, {*holders}, contents)
    return contents


def delete(contents: FolderContents) -> None:
    """Delete what unmask wrote, in an order in which a killed deletion can be repeated.

    A manifest is deleted after the files that it names; the run's recipe and list come last.
    """
    for path in contents.left_over:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in reversed(contents.own):
        path.rmdir() if path.is_dir() else path.unlink()


def refuse_foreign(folder: Path, foreign: Sequence[str]) -> None:
    """Raise an error if a folder holds files that unmask did not write."""
    if foreign:
        more = f" and {len(foreign) - SHOWN} more" if len(foreign) > SHOWN else ""
        raise FolderError(
            f"{folder}: contains files that unmask did not write: {', '.join(foreign[:SHOWN])}"
            f"{more}. Nothing was deleted. Move them out of the folder, or give another --out."
        )


def files_of_folder(folder: Path) -> set[str]:
    """Return the names of the files that unmask wrote into a model or checkpoint folder."""
    with suppress(UserError, OSError):
        files = read_with_digest(folder / MODEL_MANIFEST, limit=MODEL_LIMIT).get("files")
        if isinstance(files, dict):
            return {MODEL_MANIFEST, *(name for name in files if _is_inside(name))}
    return USUAL_FILES


def _is_inside(name: str) -> bool:
    # A manifest can be edited: nothing outside its folder may be deleted on its word.
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _walk(
    folder: Path, prefix: str, names: set[str], holders: set[str], contents: FolderContents
) -> None:
    """Survey one folder, whose path relative to the run's folder is `prefix`."""
    # The parents of a listed path are the run's own, but not their other contents.
    holders = holders | {parent.as_posix() for name in names for parent in Path(name).parents}
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=_manifests_first):
            path, name = Path(entry.path), prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            # Both belong to the run only if the name they are derived from is listed.
            leftover, damaged = LEFT_OVER.fullmatch(entry.name), DAMAGED.fullmatch(entry.name)
            is_listed = name in names or (damaged and prefix + damaged[1] in names)
            if entry.is_symlink():
                contents.foreign.append(name)
            elif leftover and prefix + leftover[1] in names:
                contents.left_over.append(path)
            elif is_listed or (is_folder and name in holders):
                contents.own.append(path)
                if is_folder:
                    inside = _paths_inside(path, name) if is_listed else names
                    _walk(path, f"{name}/", inside, set(), contents)
            else:
                contents.foreign.append(f"{name}/" if is_folder else name)


def _manifests_first(entry: os.DirEntry[str]) -> tuple[int, str]:
    names = (LIST, RECIPE, MODEL_MANIFEST)  # without a recipe, a folder is no run's
    return names.index(entry.name) if entry.name in names else len(names), entry.name


def _paths_inside(path: Path, name: str) -> set[str]:
    """Return the paths inside a listed folder that belong to the run."""
    files = (
        {path.name for path in path.glob(EVENTS)} if name == TENSORBOARD else files_of_folder(path)
    )
    return {f"{name}/{file}" for file in files}
