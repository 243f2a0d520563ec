"""Labelled data + a model -> a model for a task: where fine-tuning is put together."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.checkpoint.folder import Folder
from unmask.data import draws
from unmask.data.columns import Columns, infer
from unmask.data.lines import REFUSE, Watcher
from unmask.errors import DataError, FolderError, SettingsError, unknown
from unmask.model.config import HeadsConfig
from unmask.model.network import Network, count_parameters
from unmask.settings import build
from unmask.tasks import TASKS
from unmask.tasks.base import Supervised, Task, Window
from unmask.text.tokenizer import Tokenizer
from unmask.train.course import Course
from unmask.train.distributed import processes
from unmask.train.heldout import Show
from unmask.train.loop import Loop
from unmask.train.run import MODEL, begin, digest_of, environment, open_run
from unmask.train.scores import ONLY, Data, Scored, Scores
from unmask.train.signals import stop_wishes
from unmask.train.step import Trainee
from unmask.train.tuned import write_tuned
from unmask.train.tuning import TuneSettings, Tuning, WindowSource, rate_scale

_HEAD = 302  # the key of a head's first weights


def read_data(
    recipe: Tuning, train: Path, dev: Path, columns: Columns, watcher: Watcher = REFUSE
) -> Data:
    """Read both files, and the task that the first one poses."""
    kind = task_kind(recipe)
    own = {k: v for k, v in recipe.task.items() if k != "name"}
    how = build(kind.settings, own, where="recipe [task]")
    said = []
    if kind.tabular:
        columns = infer(train, columns)
        said.append(f"{train}: {columns.said()}")
    found = {}
    for path in (train, dev):
        found[path] = list(kind.read(path, columns, watcher, how))
        if not found[path]:
            raise DataError(f"{path}: nothing to learn from in it. Is it the right file?")
        said.append(f"{path}: {len(found[path]):,} examples")
    task = kind.learn(how, found[train])
    for path in (train, dev):
        task.check(found[path])
    said += leaks(found[train], found[dev], dev)
    return Data(task, found[train], found[dev], said)


def task_kind(recipe: Tuning) -> type[Task]:
    """The task that a recipe names."""
    name = str(recipe.task["name"])
    if name not in TASKS:
        raise SettingsError(f"recipe [task]: {unknown('task', name, TASKS)}")
    return TASKS[name]


def leaks(train: Sequence[Any], dev: Sequence[Any], path: Path) -> list[str]:
    """What is in both files flatters every score: say how much it is."""
    seen = {record.key for record in train}
    both = sum(record.key in seen for record in dev)
    if not both:
        return []
    return [f"warning: {path}: {both:,} of {len(dev):,} examples are in the training data too"]


def with_task(start: Network, heads: HeadsConfig, seed: int) -> Network:
    """A network with a task's head on the encoder (and pooler) of another."""
    torch.manual_seed(draws.key(seed, _HEAD) % 2**63)
    network = Network(start.config, heads)
    known = network.state_dict()
    found = {
        name: tensor
        for name, tensor in start.state_dict().items()
        if name in known and not name.startswith("label_head.")
    }
    network.load_state_dict({**known, **found})
    return network


def freeze(network: Network, blocks: int) -> None:
    """Let the embeddings and so many blocks stay as they are; -1: the whole encoder and pooler."""
    if not blocks:
        return
    if blocks > network.config.layers or blocks < -1:
        raise SettingsError(
            f"tune.frozen is {blocks}, and the model has {network.config.layers} blocks; need a "
            "number of them, or -1 for all."
        )
    encoder = network.encoder
    parts = [encoder.tokens, encoder.segments, encoder.positions, encoder.norm]
    parts += list(encoder.blocks[: blocks if blocks > 0 else None])
    if blocks == -1:
        parts += [encoder.last_norm, *([network.pooler] if network.pooler else [])]
    for part in parts:
        part.requires_grad_(False)


def finetune(
    model: Folder,
    data: Data,
    out: Path,
    recipe: Tuning,
    *,
    resume: bool = False,
    overwrite: bool = False,
    facts: dict[str, Any] | None = None,
    notice: Callable[[str], None] = print,
    show: Show | None = None,
) -> dict[str, Any]:
    """Train a task's head and what is below it; returns the scores of the best step."""
    begun = time.monotonic()
    tokenizer = tokenizer_of(model)
    with (
        stop_wishes() as wish,
        processes() as group,
        open_run(
            out, resume=resume, overwrite=overwrite, writes=group.first, notice=notice
        ) as folder,
    ):
        for line in data.said:
            folder.say(line)
        heads = data.task.heads.model_copy(update={"layers": tuple(recipe.tune.layers)})
        network = with_task(model.network, heads, recipe.seed)
        freeze(network, recipe.tune.frozen)
        limit = window_limit(recipe.tune, network)
        windows, cut = windows_of(data.task, data.train, tokenizer, limit)
        if cut:
            folder.say(f"{cut:,} texts are longer than {limit} tokens and lose their end")
        about = {"task": data.task.name, "model": model.path.name, **(facts or {})}
        resolved = recipe.model_dump(exclude_none=True)

        def drawn(found: dict[str, Scored]) -> None:
            write_tuned(folder, resolved, found)

        scores = Scores(
            folder,
            {ONLY: data},
            tokenizer,
            group,
            limit=limit,
            patience=recipe.tune.patience,
            about=about,
            drawn=drawn,
        )
        course = Course(
            network,
            Trainee(network, Supervised(data.task)),
            WindowSource(data.task, windows, recipe, tokenizer.vocabulary.pad, group),
            tokenizer,
            recipe.optimizer,
            recipe.course(len(windows)),
            recipe.train,
            group,
            folder,
            resolved,
            about,
            wish=wish,
            scale=rate_scale(recipe.tune, network.config.layers),
            evaluate=scores,
            enough=scores.enough,
            final=scores.final,
            task=scores.settings,
            watch=show if group.first else None,
            begun=begun,
        )
        train_all(course, len(windows), recipe.tune.batch, [*data.train, *data.dev])
        folder.say(f"the model of step {scores.summary()['step']} is in {out / MODEL}")
        return scores.summary()


def train_all(course: Course, windows: int, batch: int, records: Sequence[Any]) -> None:
    """Say what the run is, write it down, and carry it out, from where it stopped if it did."""
    network, group = course.network, course.processes
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    course.folder.say(
        f"{count_parameters(network):,} parameters, {trained:,} of them trained; {windows:,} "
        f"windows, {batch} a step"
    )
    loop = Loop(course)
    facts = environment(
        corpus=digest_of(records),
        tokenizer=course.tokenizer.digest(),
        processes=group.world,
        shard=False,
    )
    begin(course.folder, course.recipe, facts)
    loop.resume()
    loop.run()


def tokenizer_of(model: Folder) -> Tokenizer:
    """The tokenizer of a folder that must have one."""
    if model.tokenizer is None:
        raise FolderError(
            f"{model.path}: neither vocab.txt nor tokenizer.json is there; a model cannot read "
            "text without its vocabulary. Put it there."
        )
    return model.tokenizer


def windows_of(
    task: Task, records: Sequence[Any], tokenizer: Tokenizer, limit: int
) -> tuple[list[Window], int]:
    """All windows of the training data, laid out tightly, and how many texts were cut."""
    found, cut = [], 0
    for _, some in task.windows(records, tokenizer, limit):
        for window in some:
            cut += isinstance(window.about, int) and window.about > 0
            found.append(
                replace(
                    window,
                    ids=np.asarray(window.ids, dtype=np.int32),  # type: ignore[arg-type]
                    segments=np.asarray(window.segments, dtype=np.int8),  # type: ignore[arg-type]
                )
            )
    return found, cut


def window_limit(tune: TuneSettings, network: Network) -> int:
    """Tokens of a window."""
    most = network.config.max_length
    if tune.length is not None and tune.length > most:
        raise SettingsError(
            f"tune.length is {tune.length}, and the model reads {most} tokens at most. Lower it."
        )
    return tune.length or most
