"""Paths inside a corpus folder, and its manifest; `corpus.py` reads everything else."""

from pathlib import Path
from typing import Any, TypedDict

from unmask.system.errors import FolderError
from unmask.system.manifest import read_with_digest

MANIFEST, PLAN, TOKENIZER_FOLDER = "manifest.json", "plan.json", "tokenizer"
SIDE_FILE = "skipped.jsonl"
FORMAT = 1
MANIFEST_LIMIT = 2**30  # bytes: a shard takes a few hundred


class Shard(TypedDict):
    """Manifest entry of a shard."""

    tokens: int
    sentences: int
    documents: int
    source: str
    sha256: dict[str, str]  # by file extension


def shard_path(folder: Path, number: int, ending: str) -> Path:
    """Return the path of a shard's file."""
    return folder / f"shard-{number:05d}.{ending}"


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a finished corpus."""
    if not (path / MANIFEST).is_file():
        problem = "no such folder"
        if path.exists():
            problem = "an unfinished corpus" if (path / PLAN).exists() else "not a corpus"
        raise FolderError(
            f"{path}: {problem}; need a corpus that `unmask prepare` has finished. Run it, or "
            "run it again to resume."
        )
    manifest = read_with_digest(path / MANIFEST, limit=MANIFEST_LIMIT)
    if manifest.get("format") != FORMAT:
        raise FolderError(
            f"{path / MANIFEST}: format {manifest.get('format')!r:.20}; this version reads "
            f"{FORMAT}. Prepare the corpus again."
        )
    return manifest
