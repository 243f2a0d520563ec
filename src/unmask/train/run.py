"""A job, a recipe and an output folder -> a finished run: where all training is put together.

    Run(job, recipe, out, console).go()

`Run` starts the clock, catches signals, joins the processes, locks the folder, and decides between
a new run, a resumed one and a restart. Only then does it ask the job for its ingredients. Because
jobs do none of this themselves, exact resume, restarts, sharding, time limits, checks and
evaluation on all processes work for every job.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from unmask.model.factory import part_of
from unmask.model.network import count_parameters
from unmask.system.console import Console
from unmask.system.distributed import Processes, join_processes, restart_count
from unmask.system.errors import FolderError
from unmask.system.plugins import loaded_plugins, registered
from unmask.system.signals import catch_stop_signals
from unmask.system.written import TENSORBOARD
from unmask.train.compose import Scope
from unmask.train.ingredients import Ingredients
from unmask.train.listeners import CallbackListener, TensorBoardWriter
from unmask.train.loop import Loop
from unmask.train.preflight import preflight
from unmask.train.recipe import Recipe
from unmask.train.run_folder import MODEL, begin, environment, open_run, stored_recipe
from unmask.train.site import Site


class Job(Protocol):
    """What a run trains: pre-training, one task, several tasks, translation, or your own job."""

    @property
    def scope(self) -> Scope:
        """The settings that the job reads from a recipe."""

    def resolve(self, recipe: Recipe, site: Site) -> Recipe:
        """Fill in settings that depend on the machine or the data, also in a stored recipe."""

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        """Read the data, and make the network and everything else that a run needs."""


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out; none of these options changes what it learns."""

    resume: bool = False
    overwrite: bool = False
    shard: bool = False
    check: bool = False  # run the preflight before the first step
    tensorboard: bool = False
    threads: int | None = None
    device: str = "auto"  # auto, cpu, cuda, cuda:N or mps


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run."""

    folder: Path
    summary: dict[str, Any]  # scores and step of the published model

    @property
    def model(self) -> Path:
        """Folder of the published model."""
        return self.folder / MODEL


@dataclass(frozen=True)
class Run:
    """One job, carried out in an output folder."""

    job: Job
    recipe: Recipe | None
    out: Path
    console: Console | None = None
    options: RunOptions = field(default_factory=RunOptions)

    def go(self) -> Outcome:
        """Train to the end, resuming if asked to; without a recipe, use the stored one."""
        started, options, console = time.monotonic(), self.options, self.console or Console()
        if options.threads:
            torch.set_num_threads(options.threads)
        # Signals first: a SIGINT that Python raises inside a library ends with a wrong exit code.
        with catch_stop_signals() as stop, join_processes(options.device) as group:
            # torchrun repeats the original command when it restarts workers.
            resume = options.resume or restart_count() > 0
            with open_run(
                self.out,
                resume=resume,
                overwrite=options.overwrite,
                writes=group.first,
                console=console,
            ) as folder:
                group.wait()  # until the first process has decided about the folder
                scope = self.job.scope
                stored = None if folder.replaces else stored_recipe(self.out, scope, console)
                site = Site(group, folder, console, stop, started, stored, options.check)
                try:
                    return self._train(site)
                finally:
                    console.finish()

    def _train(self, site: Site) -> Outcome:
        recipe, group = self._resolve_recipe(site), site.processes
        ingredients = self.job.build(recipe, site)
        for names in filter(None, ingredients.publish.values()):
            part_of(ingredients.network, names)  # raises now, rather than when training is over
        # Every process reads the data by itself; other data on one of them would go unnoticed.
        group.refuse_difference(ingredients.digest.sha256, f"the {ingredients.digest.name}")
        group.refuse_difference(self.job.scope.table(recipe), "the recipe")
        group.wait()
        site.folder.start_over()  # the old run survives if anything above fails
        if self.options.tensorboard and group.first:
            site.folder.claim(TENSORBOARD)
            site.folder.listeners.append(TensorBoardWriter(self.out / TENSORBOARD))
        for name, callback in registered("callback").items():
            site.folder.listeners.append(CallbackListener(name, callback, site.folder.say))
        group.wait()
        _log_parameter_count(ingredients, site)
        # A run that was killed before its first checkpoint starts over, and is checked again.
        fresh = not any(site.folder.checkpoints.glob("step-*"))
        if site.check and fresh and group.first:
            preflight(ingredients, site)
        group.wait()
        loop = Loop(ingredients, recipe, site, shard=self.options.shard)
        facts = {
            **environment(),
            "corpus": ingredients.digest.sha256,
            "data": ingredients.digest.name,
            "tokenizer": ingredients.tokens.digest(),
            "processes": group.world,
            "shard": self.options.shard,
            "precision": loop.precision,
            "micro_batches": recipe.loop.micro_batches,
            "plugins": loaded_plugins(),
        }
        # Recipes stored by older versions leave settings open; fill them in before comparing.
        stored = None if site.stored is None else self.job.resolve(site.stored, site)
        # The recipe on disk makes the folder a run, so a run that cannot be set up leaves none.
        begin(site.folder, self.job.scope, recipe, facts, stored)
        loop.resume()
        loop.run()
        ingredients.evaluator.report()
        best = ingredients.evaluator.best(loop.position)
        return Outcome(self.out, {**best.scores, "step": best.step})

    def _resolve_recipe(self, site: Site) -> Recipe:
        """Fill in what the recipe leaves open, and fit its micro-batches to the processes."""
        recipe = self.recipe or site.stored
        if recipe is None:
            raise FolderError(
                f"{self.out}: no run to resume: the folder has no recipe.toml. Check the path."
            )
        if self.options.shard:
            recipe.optimizer.refuse_sharding()
        recipe = self.job.resolve(recipe, site)
        # Resuming never goes below the stored number: how a step is split decides the last bits.
        stored_minimum = site.stored.loop.micro_batches if site.stored else 1
        minimum = max(recipe.loop.micro_batches, stored_minimum)
        needed = micro_batches(minimum, site.processes, shard=self.options.shard)
        if needed != recipe.loop.micro_batches:
            site.folder.say(
                f"loop.micro_batches is raised from {recipe.loop.micro_batches} to {needed}, so "
                f"that each of {site.processes.world} processes computes at least one micro-batch "
                "of a step"
            )
        return recipe.changed(loop={"micro_batches": needed})


def micro_batches(minimum: int, group: Processes, *, shard: bool) -> int:
    """Return the smallest number of micro-batches from `minimum` on that the processes can share.

    With sharded weights, every process must run equally many: each pass gathers weights from all.
    """
    if shard:
        return -(-minimum // group.world) * group.world
    return max(minimum, group.world)


def _log_parameter_count(ingredients: Ingredients, site: Site) -> None:
    network = ingredients.network
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    count = count_parameters(network)
    trained_note = "" if trained == count else f", of which {trained:,} are trained"
    site.folder.say(f"{count:,} parameters{trained_note}")
