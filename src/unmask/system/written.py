"""The list of what a run wrote into its folder; `--overwrite` deletes that and nothing else.

    .written    recipe.toml
                checkpoints/step-500
                model

A name is listed before its file or folder is written. Inside a listed folder, the files that its
manifest names are the run's. Everything else in the folder belongs to the user.
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
BOARD = "tensorboard"
SHOWN = 5  # names in an error message
LEFT_OVER = re.compile(r"\.(.+)\.tmp-.+")  # of a writer that was killed
DAMAGED = re.compile(r"damaged-(step-\d+)-[0-9a-f]{6}")  # a checkpoint that was set aside
EVENTS = "events.out.tfevents.*"
# The files of a model or checkpoint folder whose manifest is missing or damaged.
USUAL = {MODEL_MANIFEST, "config.json", "model.safetensors", "optimizer.safetensors", "state.json"}
_TOKENIZER = {"vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
USUAL |= {"README.md", *_TOKENIZER, *(f"target/{name}" for name in _TOKENIZER)}


@dataclass
class FolderContents:
    """What is in a folder: what unmask wrote there, and the names of everything else."""

    # A folder before what is in it; lists and manifests before what they name.
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
    """List something that is about to be written. What exists already is not the run's own."""
    names = read_list(folder) or []
    if name not in names and not os.path.lexists(folder / name):
        write_list(folder, [*names, name])


def survey(folder: Path, names: Collection[str], holders: Collection[str] = ()) -> FolderContents:
    """Sort everything in a folder by who wrote it, given the listed names.

    `holders` are folders that only hold listed ones, and may be empty. Links are not followed: a
    run makes none, so every link belongs to the user.
    """
    found = FolderContents()
    _walk(folder, "", {*names}, {*holders}, found)
    return found


def delete(contents: FolderContents) -> None:
    """Delete what unmask wrote, in an order that a killed process can start again.

    Manifests go after the files that they name, the recipe and the list of the run last.
    """
    for path in contents.left_over:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in reversed(contents.own):
        path.rmdir() if path.is_dir() else path.unlink()


def refuse_foreign(folder: Path, foreign: Sequence[str]) -> None:
    """Raise an error that names what would have been lost."""
    if foreign:
        more = f" and {len(foreign) - SHOWN} more" if len(foreign) > SHOWN else ""
        raise FolderError(
            f"{folder}: holds what unmask did not write: {', '.join(foreign[:SHOWN])}{more}. "
            "Nothing was deleted. Move it out of the folder, or give another --out."
        )


def files_of_folder(folder: Path) -> set[str]:
    """Return the names of the files in a model or checkpoint folder that unmask wrote."""
    with suppress(UserError, OSError):
        files = read_with_digest(folder / MODEL_MANIFEST, limit=MODEL_LIMIT).get("files")
        if isinstance(files, dict):
            return {MODEL_MANIFEST, *(name for name in files if _is_inside(name))}
    return USUAL


def _is_inside(name: str) -> bool:
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _walk(
    place: Path, inside: str, names: set[str], holders: set[str], found: FolderContents
) -> None:
    """Survey a folder whose path from the outermost one is `inside`."""
    holders = holders | {parent.as_posix() for name in names for parent in Path(name).parents}
    with os.scandir(place) as entries:
        for entry in sorted(entries, key=_tells_of_others):
            path, name = Path(entry.path), inside + entry.name
            folder = entry.is_dir(follow_symlinks=False)
            left, damaged = LEFT_OVER.fullmatch(entry.name), DAMAGED.fullmatch(entry.name)
            owned = name in names or (damaged and inside + damaged[1] in names)
            if entry.is_symlink():
                found.foreign.append(name)
            elif left and inside + left[1] in names:
                found.left_over.append(path)
            elif owned or (folder and name in holders):
                found.own.append(path)
                if folder:
                    _walk(path, f"{name}/", _own(path, name) if owned else names, set(), found)
            else:
                found.foreign.append(f"{name}/" if folder else name)


def _tells_of_others(entry: os.DirEntry[str]) -> tuple[int, str]:
    names = (LIST, RECIPE, MODEL_MANIFEST)  # without a recipe, a folder does not count as a run
    return names.index(entry.name) if entry.name in names else len(names), entry.name


def _own(path: Path, name: str) -> set[str]:
    """Return what belongs to the run in one of its folders."""
    files = {event.name for event in path.glob(EVENTS)} if name == BOARD else files_of_folder(path)
    return {f"{name}/{file}" for file in files}
