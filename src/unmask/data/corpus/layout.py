"""Where things lie in a corpus folder, and its manifest; `corpus.py` reads the rest."""

from pathlib import Path
from typing import Any, TypedDict

from unmask.system.errors import FolderError
from unmask.system.manifest import read_with_digest

MANIFEST, PLAN, TOKENIZER_FOLDER = "manifest.json", "plan.json", "tokenizer"
SIDE_FILE = "skipped.jsonl"
FORMAT = 1
MANIFEST_LIMIT = 2**30  # bytes: a few hundred for each shard


class Shard(TypedDict):
    """What the manifest says of a shard."""

    tokens: int
    sentences: int
    documents: int
    source: str
    sha256: dict[str, str]  # by the ending of the file


def shard_path(folder: Path, number: int, ending: str) -> Path:
    """Where a file of a shard lies."""
    return folder / f"shard-{number:05d}.{ending}"


def read_manifest(path: Path) -> dict[str, Any]:
    """What a finished corpus says of itself."""
    if not (path / MANIFEST).is_file():
        what = "no such folder"
        if path.exists():
            what = "a corpus that is not finished" if (path / PLAN).exists() else "no corpus"
        raise FolderError(
            f"{path}: {what}; need a folder that `unmask prepare` has finished. Run it, or run it "
            "again: it goes on where it stopped."
        )
    manifest = read_with_digest(path / MANIFEST, limit=MANIFEST_LIMIT)
    if manifest.get("format") != FORMAT:
        raise FolderError(
            f"{path / MANIFEST}: format {manifest.get('format')!r:.20}; this version reads "
            f"{FORMAT}. Prepare the corpus again."
        )
    return manifest
