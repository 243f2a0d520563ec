"""Files -> a folder that appears completely or not at all, and in which any change is detected.

A folder is written under a temporary name beside its target: every file, then `unmask.json` with
the sha256 of each, everything synced to disk, then one rename. A crash leaves the old state or the
new one. `verify` reads everything again and names the file that differs.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from unmask.system.disk import (
    check_output_folder,
    disk_error,
    fsync,
    put_in_place,
    remove_leftovers,
    sha256_of_file,
    temporary_folder,
)
from unmask.system.errors import FolderError
from unmask.system.manifest import MODEL_LIMIT, read_with_digest, with_digest
from unmask.system.manifest import MODEL_MANIFEST as MANIFEST
from unmask.version import VERSION

CONFIG = "config.json"
FORMAT = 1  # of the manifest
FILES_READ = (  # every file that loading a folder may read
    CONFIG,
    "model.safetensors",
    "model.safetensors.index.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "target/vocab.txt",
    "target/tokenizer.json",
    "target/tokenizer_config.json",
    "compiled.onnx",
)


@contextmanager
def publish(target: Path, about: dict[str, Any], *, needed: int | None = None) -> Iterator[Path]:
    """Yield a folder to write into; it appears as `target`, complete, when the block ends.

    `needed` is its size in bytes, for the error of a full disk.
    """
    check_output_folder(target, renamed=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent, f".{escape(target.name)}.tmp-*")
        with temporary_folder(target) as temporary:
            yield temporary
            _write_manifest(temporary, about)
            put_in_place(temporary, target)
            fsync(target.parent)
    except OSError as error:
        # Another process may have published the folder meanwhile; then say that, not that the
        # disk failed.
        check_output_folder(target, renamed=True)
        raise disk_error(target, error, needed=needed) from error


def require_model_folder(path: Path) -> None:
    """Raise an error if a path is not a model folder; unlike loading one, this needs no torch."""
    if not (path / CONFIG).is_file():
        problem = "is a file" if path.exists() else "no such folder"
        problem = f"has no {CONFIG}" if path.is_dir() else problem
        raise FolderError(f"{path}: {problem}; need a model folder. Check the path.")


def verify(folder: Path) -> dict[str, Any] | None:
    """Check every file of a folder against its manifest, and return the manifest.

    Without a manifest, return None: unmask did not write the folder, and there are no digests.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    manifest = read_with_digest(path, limit=MODEL_LIMIT)
    if manifest.get("format") != FORMAT:
        raise FolderError(
            f"{path}: manifest format {manifest.get('format')!r:.20}; this version reads only "
            f"{FORMAT}. Use the version of unmask that wrote it."
        )
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise FolderError(f"{path}: the table 'files' is missing; need the sha256 of every file.")
    listed: dict[str, object] = files
    for name, entry in listed.items():
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int:
            raise FolderError(f"{path}: {name[:80]!r} has no size; need its bytes and sha256.")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise FolderError(f"{path}: {name[:80]!r} leads out of the folder.")
        _verify_file(folder / name, entry)
    # A file that the manifest does not list could replace one that it does: a tokenizer.json, say,
    # is read in preference to vocab.txt.
    added = [name for name in FILES_READ if name not in files and (folder / name).exists()]
    if added:
        raise FolderError(
            f"{folder / added[0]}: was added since the folder was written; {MANIFEST} does not "
            f"list it. Remove it; if you added it yourself, remove {MANIFEST} and run "
            "`unmask convert`."
        )
    return manifest


def fingerprint(folder: Path) -> str:
    """Return a digest that identifies a model: that of its manifest, or of all of its files."""
    # The manifest contains the digest of every file, so its own digest stands for all of them.
    if (folder / MANIFEST).exists():
        return sha256_of_file(folder / MANIFEST)
    names = {*FILES_READ, *(path.name for path in folder.glob("*.safetensors"))}
    digests = [sha256_of_file(folder / name) for name in sorted(names) if (folder / name).exists()]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _verify_file(path: Path, entry: dict[str, object]) -> None:
    if not path.is_file():
        raise FolderError(f"{path}: is missing, but {MANIFEST} lists it. Restore the file.")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise FolderError(
            f"{path}: has {size:,} bytes, but was written with {entry['bytes']:,}; it was "
            "truncated or changed. Restore the file."
        )
    if sha256_of_file(path) != entry.get("sha256"):
        raise FolderError(
            f"{path}: was changed since it was written (its sha256 differs from {MANIFEST}). "
            f"Restore the file; if the change is yours, remove {MANIFEST} and run `unmask convert`."
        )


def _write_manifest(folder: Path, about: dict[str, Any]) -> None:
    """Sync every file to disk, then write the manifest that lists them all."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        fsync(path)
        name = path.relative_to(folder).as_posix()
        files[name] = {"sha256": sha256_of_file(path), "bytes": path.stat().st_size}
    manifest: dict[str, Any] = {"format": FORMAT, "unmask": VERSION, **about}
    manifest["files"] = files
    path = folder / MANIFEST
    path.write_bytes(with_digest(manifest))
    # The names of files are in their folders, which have to be synced too.
    for part in (path, *(p for p in folder.rglob("*") if p.is_dir()), folder):
        fsync(part)
