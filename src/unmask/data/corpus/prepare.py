"""Text files -> a corpus folder: in constant memory, on several processes, resumable.

The input is read in order and cut into chunks, one per shard, at places that depend on the input
alone. Workers turn chunks into shards; a shard that exists and was made from the same text is
skipped. So a killed preparation resumes where it was, and N tasks on N machines that share a disk
each make every N-th shard. The task that finds all shards complete writes the manifest.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from unmask.data.corpus.layout import (
    FORMAT,
    MANIFEST,
    MANIFEST_LIMIT,
    PLAN,
    SIDE_FILE,
    TOKENIZER_FOLDER,
    read_manifest,
    shard_path,
)
from unmask.data.corpus.shards import Chunk, Words, id_type, write_shard
from unmask.data.corpus.statistics import CorpusReport
from unmask.data.read.documents import Document, Lines, SkipPolicy, read_documents
from unmask.system.console import Console
from unmask.system.disk import check_output_folder, file_lock, write_file
from unmask.system.errors import DataError, FolderError
from unmask.system.manifest import with_digest
from unmask.system.process_pool import map_in_order
from unmask.system.settings import Settings, read_json
from unmask.text.tokenizer import Tokenizer, in_groups
from unmask.text.tokenizer_files import tokenizer_files

SHARD_LIMIT = 2**20  # bytes of a shard's .json
Progress = Callable[[int, int], None]  # bytes of the input that are processed, and all of them


class PrepareSettings(Settings):
    """How text becomes a corpus; any other value makes another corpus."""

    column: str | None = None  # text column of a table
    lines: Lines = "auto"  # .txt: what a line is
    words: Words = "pieces"  # for whole-word masking: joined ## tokens, or what is between spaces
    on_bad: Literal["stop", "skip"] = "stop"
    shard_characters: Annotated[int, Field(ge=1000, le=2**26)] = 2**22


class PreparePlan(TypedDict):
    """Everything that determines what a corpus will contain."""

    format: int
    settings: dict[str, object]
    tokenizer: str  # its digest
    files: list[str]  # their names


class PrepareTask(Settings):
    """Which share of the shards this process makes."""

    number: Annotated[int, Field(ge=0)] = 0
    tasks: Annotated[int, Field(ge=1)] = 1


def prepare(
    files: Sequence[str],
    tokenizer: Tokenizer,
    out: Path,
    settings: PrepareSettings,
    *,
    task: PrepareTask | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    notice: Callable[[str], None] = Console().say,
) -> dict[str, Any] | None:
    """Make or resume a corpus; return its manifest, or None while other tasks are still running."""
    check_corpus_folder(out)
    task = task or PrepareTask()
    if task.number >= task.tasks:
        raise FolderError(
            f"task {task.number} of {task.tasks}: tasks are numbered from 0 to {task.tasks - 1}."
        )
    plan = _plan(files, tokenizer, settings)
    _start_or_check(out, plan, tokenizer)
    # One lock per task: different tasks may share the folder, the same task twice may not.
    with file_lock(out / f".lock-{task.number}", what="this corpus"):
        if (out / MANIFEST).exists():
            return _finished_manifest(out, files, notice)
        policy = SkipPolicy(skip=settings.on_bad == "skip")
        documents = read_documents(files, policy, column=settings.column, lines=settings.lines)
        count = 0

        def missing() -> Iterator[Chunk]:
            nonlocal count
            # Every task reads all of the input and skips the chunks of others: reading is some
            # forty times as fast as tokenizing, and compressed files cannot be divided without an
            # index.
            for group in in_groups(documents, _characters, settings.shard_characters):
                bytes_read = policy.position
                chunk = Chunk(count, group, out, plan["tokenizer"], settings.words, bytes_read)
                count += 1
                if chunk.number % task.tasks == task.number and not _shard_exists(chunk):
                    yield chunk

        total = sum(_sizes(files))
        for chunk, _ in map_in_order(write_shard, missing(), workers):
            if progress:
                progress(chunk.end, total)
        for file, layout in policy.files.items():
            notice(f"{Path(file).name}: {layout}")
        ids = id_type(len(tokenizer.vocabulary))
        return _finish(out, plan, {"ids": ids, "bytes": _sizes(files)}, count, policy)


def _sizes(files: Sequence[str]) -> list[int]:
    return [Path(file).stat().st_size for file in files]


def _finished_manifest(
    out: Path, files: Sequence[str], notice: Callable[[str], None]
) -> dict[str, Any]:
    """Return the manifest of a finished corpus, unless the size of its input has changed."""
    manifest = read_manifest(out)
    sizes: list[int] = manifest["bytes"]
    for file, before, now in zip(files, sizes, _sizes(files), strict=True):
        if now != before:
            raise FolderError(
                f"{out}: the corpus is finished, but {file} has changed since ({before:,} bytes "
                f"then, {now:,} now). Use another --out."
            )
    notice(f"{out} is already finished; nothing to do")
    return manifest


def _characters(document: Document) -> int:
    return len(document.text)


def _shard_exists(chunk: Chunk) -> bool:
    """Whether the shard of a chunk exists; one that was made from other text is refused."""
    path = shard_path(chunk.folder, chunk.number, "json")
    if not path.exists():
        return False
    # The text of this chunk is compared, not the size of the file: a line that was fixed further on
    # does not invalidate the shards before it.
    if read_json(path, limit=SHARD_LIMIT).get("source") != chunk.digest():
        raise FolderError(
            f"{path}: was made from different text; the input has changed since. Use another --out."
        )
    return True


def _plan(files: Sequence[str], tokenizer: Tokenizer, settings: PrepareSettings) -> PreparePlan:
    """Describe what this corpus will be made of, and how."""
    if "-" in files:
        raise DataError(
            "-: preparing a corpus may have to be resumed, and standard input cannot be read a "
            "second time. Write it to a file first."
        )
    return {
        "format": FORMAT,
        # A run that stopped at a bad record may be resumed with --on-bad skip.
        "settings": settings.model_dump(exclude={"on_bad"}),
        "tokenizer": tokenizer.digest(),
        "files": [Path(file).name for file in files],
    }


def check_corpus_folder(out: Path) -> None:
    """Refuse a folder that cannot become a corpus, before any input is read."""
    check_output_folder(out, renamed=False)
    is_used = out.is_dir() and any(entry.name[0] != "." for entry in out.iterdir())
    if is_used and not (out / PLAN).exists():  # another task may have written it meanwhile
        raise FolderError(f"{out}: already exists and is not a corpus. Give another --out.")


def _start_or_check(out: Path, plan: PreparePlan, tokenizer: Tokenizer) -> None:
    """Write the plan into a new folder, or compare it with the plan that is there."""
    path = out / PLAN
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(plan, indent=2, ensure_ascii=False).encode() + b"\n")
    _refuse_other_plan(out, read_json(path, limit=MANIFEST_LIMIT), plan)
    folder = out / TOKENIZER_FOLDER
    folder.mkdir(exist_ok=True)
    for name, text in tokenizer_files(tokenizer).items():
        if not (folder / name).exists():
            write_file(folder / name, text.encode("utf-8"))


def _refuse_other_plan(out: Path, written: dict[str, Any], plan: PreparePlan) -> None:
    """Raise an error if a folder was begun with another plan."""
    old: dict[str, object] = {**written.get("settings", {}), **written}
    for name, value in {**plan["settings"], **plan}.items():
        if name != "settings" and old.get(name) != value:
            values = f" ({old.get(name)!r:.100} then, {value!r:.100} now)"
            detail = "" if name == "tokenizer" else values
            raise FolderError(
                f"{out}: was started with a different '{name}'{detail}. Use the same value, or "
                "give another --out."
            )


def _finish(
    out: Path,
    plan: PreparePlan,
    facts: dict[str, object],
    count: int,
    policy: SkipPolicy,
) -> dict[str, Any] | None:
    """Merge the statistics of all shards into the manifest, if all shards exist."""
    paths = [shard_path(out, number, "json") for number in range(count)]
    if not all(path.exists() for path in paths):
        return None
    statistics, shards = CorpusReport(), []
    for path in paths:
        entry = read_json(path, limit=SHARD_LIMIT)
        statistics.add(CorpusReport(**entry.pop("statistics")))
        shards.append(entry)
    if not statistics.tokens:
        raise DataError(f"{out}: the input contains no tokens. Is it the right file?")
    if policy.skipped:
        write_file(out / SIDE_FILE, (line.encode() for line in policy.lines()))
    # A resumed run reads everything again, so its own count tells whether the shards are of this
    # text.
    if policy.records != statistics.records:
        raise FolderError(
            f"{out}: {policy.records:,} records were read, but {statistics.records:,} are in the "
            "shards; the input changed while it was being read. Use another --out."
        )
    for leftover in out.glob(".shard-*.tmp-*"):  # of writers that were killed
        leftover.unlink(missing_ok=True)
    manifest = {
        **{name: value for name, value in plan.items() if name != "settings"},
        **plan["settings"],
        **facts,
        "records": {
            "read": policy.records + policy.skipped + policy.blanks,
            "used": statistics.records,
            "skipped": policy.skipped,
            "blank": policy.blanks,
        },
        "layout": {Path(file).name: layout for file, layout in policy.files.items()},
        "statistics": vars(statistics),
        "shards": shards,
    }
    write_file(out / MANIFEST, with_digest(manifest))
    return manifest
