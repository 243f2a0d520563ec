"""Labelled data + a model -> a model for a task: where fine-tuning is put together."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch

from unmask.checkpoint.folder import Folder
from unmask.data import draws
from unmask.data.columns import Columns, infer
from unmask.data.lines import REFUSE, Watcher
from unmask.data.statistics import leaks
from unmask.errors import DataError, SettingsError, unknown
from unmask.model.config import HeadsConfig
from unmask.model.network import Network, count_parameters
from unmask.objectives.base import Objective
from unmask.settings import build
from unmask.tasks import TASKS
from unmask.tasks.base import Supervised, Task, Window, was_cut
from unmask.text.tokenizer import Tokenizer
from unmask.train.ahead import Source
from unmask.train.course import Course
from unmask.train.distributed import Processes, processes
from unmask.train.heldout import Show
from unmask.train.loop import Loop
from unmask.train.run import MODEL, RunFolder, begin, digest_of, environment, open_run
from unmask.train.scores import ONLY, Answered, Data, Measured, Scores
from unmask.train.signals import stop_wishes
from unmask.train.step import Trainee
from unmask.train.tuned import write_tuned
from unmask.train.tuning import Common, TuneSettings, Tuning, WindowSource, rate_scale

_HEAD = 302  # the key of a head's first weights


class How(TypedDict, total=False):
    """How a run is started and watched."""

    resume: bool
    overwrite: bool
    notice: Callable[[str], None]
    show: Show | None


def read_data(
    task: dict[str, Any], train: Path, dev: Path, columns: Columns, watcher: Watcher = REFUSE
) -> Data:
    """Read both files, and the task that the first one poses, with a recipe's settings of it."""
    kind = task_kind(str(task["name"]))
    own = {k: v for k, v in task.items() if k != "name"}
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
    learned = kind.learn(how, found[train])
    for path in (train, dev):
        learned.check(found[path])
    said += leaks(found[train], found[dev], dev)
    return Data(learned, found[train], found[dev], said)


def task_kind(name: str) -> type[Task]:
    """The task of a name."""
    if name not in TASKS:
        raise SettingsError(f"recipe [task]: {unknown('task', name, TASKS)}")
    return TASKS[name]


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


def reading(heads: HeadsConfig, layers: Sequence[int], count: int) -> HeadsConfig:
    """A task's heads on these layers of so many, side by side; on the usual ones, if none."""
    if not layers:
        return heads
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise SettingsError(
                f"tune.layers has {layer}, and the model has {count} blocks; need numbers from 0 "
                f"(the embeddings) to {count}, or from -{count + 1} to -1."
            )
    return heads.model_copy(update={"layers": tuple(layers), "pooler": False})


def freeze(network: Network, blocks: int, *, pooler: bool) -> None:
    """Let the embeddings and so many blocks stay as they are; -1: the whole encoder.

    Then the pooler too, if there is a trained one. Blocks that no head reads cannot learn.
    """
    layers = [layer % (network.config.layers + 1) for layer in network.heads.layers]
    for block in network.encoder.blocks[max(layers, default=network.config.layers) :]:
        block.requires_grad_(False)
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
        parts += [encoder.last_norm, *([network.pooler] if network.pooler and pooler else [])]
    for part in parts:
        part.requires_grad_(False)


@dataclass(frozen=True)
class Plan:
    """What a network is to learn, from what, and how it is scored."""

    heads: HeadsConfig
    objective: Callable[[Network], Objective]
    source: Callable[[Processes, RunFolder], tuple[Source, int]]  # and how many items an epoch has
    measure: Callable[[Network], Measured]
    records: Sequence[Any]  # all of them, to know the data again
    about: dict[str, Any]  # written into the models
    target: Tokenizer | None = None  # of what a decoder says
    finish: Callable[[Scores, Course], None] | None = None  # once the model is published


def finetune(
    model: Folder, data: Data, out: Path, recipe: Tuning, **how: Unpack[How]
) -> dict[str, Any]:
    """Train a task's head and what is below it; returns the scores of the best step."""
    plan = plan_of(
        {ONLY: data},
        model,
        recipe,
        reading(data.task.heads, recipe.tune.layers, model.network.config.layers),
        lambda network: Supervised(data.task),
        lambda sources: sources[ONLY],
        {"task": data.task.name},
    )
    return carry_out(plan, model, out, recipe, **how)


def plan_of(
    parts: dict[str, Data],
    model: Folder,
    recipe: Common,
    heads: HeadsConfig,
    objective: Callable[[Network], Objective],
    merged: Callable[[dict[str, WindowSource]], Source],
    about: dict[str, Any],
) -> Plan:
    """How labelled data of one task, or of several, are learned from."""
    tokenizer, limit = model.needed_tokenizer(), window_limit(recipe.tune, model.network)

    def source(group: Processes, folder: RunFolder) -> tuple[Source, int]:
        sources = _sources(parts, recipe, tokenizer, limit, group, folder)
        return merged(sources), sum(len(own.items) for own in sources.values())

    records = [record for data in parts.values() for record in (*data.train, *data.dev)]
    measure = Answered(parts, tokenizer, limit)
    return Plan(heads, objective, source, measure, records, about)


def carry_out(
    plan: Plan, model: Folder, out: Path, recipe: Common, **how: Unpack[How]
) -> dict[str, Any]:
    """Train, from where a run was stopped if it was; returns the scores of the best step."""
    begun = time.monotonic()
    tokenizer = model.needed_tokenizer()
    notice, show = how.get("notice", print), how.get("show")
    asked = {"resume": how.get("resume", False), "overwrite": how.get("overwrite", False)}
    with (
        stop_wishes() as wish,
        processes() as group,
        open_run(out, **asked, writes=group.first, notice=notice) as folder,
    ):
        network = with_task(model.network, plan.heads, recipe.seed)
        freeze(network, recipe.tune.frozen, pooler=model.network.pooler is not None)
        source, items = plan.source(group, folder)
        _say_sizes(folder, network, items, recipe)
        about = {**plan.about, "model": model.path.name}
        resolved = recipe.model_dump(exclude_none=True)
        scores = Scores(
            folder,
            plan.measure,
            tokenizer,
            group,
            limit=window_limit(recipe.tune, network),
            patience=recipe.tune.patience,
            about=about,
            drawn=lambda found: write_tuned(folder, resolved, found),
            target=plan.target,
        )
        course = Course(
            network,
            Trainee(network, plan.objective(network)),
            source,
            tokenizer,
            recipe.optimizer,
            recipe.course(items),
            recipe.train,
            group,
            folder,
            resolved,
            about,
            target=plan.target,
            wish=wish,
            scale=rate_scale(recipe.tune, network.config.layers),
            evaluate=scores,
            enough=scores.enough,
            final=scores.final,
            report=scores.draw,
            watch=show if group.first else None,
            begun=begun,
        )
        _train(course, plan, scores)
        folder.say(f"the model of step {scores.summary()['step']} is in {out / MODEL}")
        if plan.finish and group.first:
            plan.finish(scores, course)
        return scores.summary()


def _sources(
    parts: dict[str, Data],
    recipe: Common,
    tokenizer: Tokenizer,
    limit: int,
    group: Processes,
    folder: RunFolder,
) -> dict[str, WindowSource]:
    """What is learned from, of each part; says what there is."""
    found = {}
    for name, data in parts.items():
        for line in data.said:
            folder.say(line)
        windows, cut = windows_of(data.task, data.train, tokenizer, limit)
        if cut:
            folder.say(f"{cut:,} texts are longer than {limit} tokens and lose their end")
        found[name] = WindowSource(
            data.task, windows, recipe, tokenizer.vocabulary.pad, group, term=name or None
        )
    return found


def _say_sizes(folder: RunFolder, network: Network, items: int, recipe: Common) -> None:
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    folder.say(
        f"{count_parameters(network):,} parameters, {trained:,} of them trained; {items:,} "
        f"windows, {recipe.tune.batch} a step"
    )


def _train(course: Course, plan: Plan, scores: Scores) -> None:
    """Write down what the run is, and carry it out, from where it stopped if it did."""
    loop = Loop(course)
    tokenizers = course.tokenizer.digest() + (plan.target.digest() if plan.target else "")
    facts = environment(
        corpus=digest_of(plan.records),
        tokenizer=tokenizers,
        processes=course.processes.world,
        shard=False,
    )
    begin(course.folder, course.recipe, facts)
    loop.resume()
    scores.resumed()
    loop.run()


def windows_of(
    task: Task, records: Sequence[Any], tokenizer: Tokenizer, limit: int
) -> tuple[list[Window], int]:
    """All windows of the training data, laid out tightly, and how many texts were cut."""
    found, cut = [], 0
    for _, some in task.windows(records, tokenizer, limit):
        for window in some:
            cut += was_cut(window)
            found.append(
                replace(
                    window,
                    about=None,  # is for answers
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
