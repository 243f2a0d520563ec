"""Corpus preparation on a Ray cluster: Ray Data runs the tasks of `prepare` (optional dependency).

Every task reads the input and makes its share of the shards, on whatever machine it runs, so the
input files and the corpus folder must be on a disk that all machines share.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.data.corpus.prepare import PrepareSettings, PrepareTask, prepare
from unmask.system.errors import DataError, UserError, require
from unmask.text.tokenizer import Tokenizer


def prepare_on_ray(
    files: Sequence[str],
    tokenizer: Tokenizer,
    out: Path,
    settings: PrepareSettings,
    *,
    tasks: int = 1,
) -> dict[str, Any] | None:
    """Make a corpus with tasks on Ray, with the same bytes; `tasks=1` means one task per core."""
    require("--engine ray", "ray", "ray.data", extra="ray")
    from ray import cluster_resources, init, is_initialized
    from ray.data import range as rows_of

    if not is_initialized():
        init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    resources: dict[str, float] = cluster_resources()
    count = tasks if tasks > 1 else max(int(resources.get("CPU", 1)), 1)
    paths = [str(Path(file).resolve()) for file in files]
    folder = out.resolve()
    vocabulary, casing = tokenizer.vocabulary, tokenizer.casing

    def run(row: dict[str, int]) -> dict[str, str]:
        task = PrepareTask(number=int(row["id"]), tasks=count)
        try:
            prepare(paths, Tokenizer(vocabulary, casing), folder, settings, task=task)
        except UserError as error:
            # Returned, because Ray would wrap an exception in one of its own.
            return {"error": str(error)}
        return {"error": ""}

    results: list[dict[str, str]]
    results = rows_of(count, override_num_blocks=count).map(run).take_all()
    errors = [result["error"] for result in results if result["error"]]
    if errors:
        raise DataError(errors[0])
    # All shards exist now. If two tasks ended at the same moment, the manifest may be missing.
    return prepare(paths, tokenizer, folder, settings)
