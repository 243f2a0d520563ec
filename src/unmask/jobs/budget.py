"""Time budget, machine and corpus -> model size and batch size, for `model.size = "auto"`.

A larger network learns more from each token but sees fewer of them. Which one reaches the lower
loss depends on the number of tokens that it sees per weight. So the machine is timed first, with a
batch of each size, smallest first. Repeated passes over the corpus count, up to a limit.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.data.batch import Batch, collate
from unmask.data.corpus.corpus import Corpus
from unmask.data.corpus.examples import NO_PAIR
from unmask.data.corpus.stream import CorpusExample
from unmask.jobs.inputs.corpus import objective_for
from unmask.jobs.inputs.learner import learner_of
from unmask.model.config import SIZES
from unmask.model.network import count_parameters
from unmask.model.shape import Shape
from unmask.system.distributed import Processes
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.optim.optimizers import make_optimizer
from unmask.train.optim.precision import choose_precision
from unmask.train.recipe import AUTO, Recipe
from unmask.train.site import Site
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepSite, TrainingModule

# BERT's sizes, and one between tiny and mini, which are eight times apart.
CANDIDATES: dict[str, dict[str, Any]] = {
    "tiny": {"size": "tiny"},
    "tiny with four layers": {"size": "tiny", "layers": 4},
    **{name: {"size": name} for name in SIZES if name != "tiny"},
}
# Tokens for each weight of the blocks, below which a size does not pay. Measured: with 1.4, mini
# ended far above tiny with four layers, which had 26. Where mini begins to pay is not known.
NEEDED = 4.0
REPEATS = 25  # passes over a text that count: it was still learned from after 27
STEPS = 5000  # aimed at: in a short run, steps count more than tokens
SMALLEST, LARGEST = 1024, 32_768  # batch sizes in tokens; below, the optimizer takes too long


@dataclass(frozen=True)
class StepTiming:
    """The measured cost of a training step of one model size."""

    micro_batch_seconds: float  # seconds of a micro-batch
    optimizer_seconds: float  # seconds of the optimizer per step
    tokens: int  # of a micro-batch
    weights: int  # of the blocks

    def speed(self, step: float, world: int = 1) -> float:
        """Return the tokens per second with this batch size and number of processes."""
        return step / (
            step / self.tokens * self.micro_batch_seconds / world + self.optimizer_seconds
        )


def choose_size(recipe: Recipe, corpus: Corpus, site: Site) -> Recipe:
    """Choose the size and batch size that the recipe leaves open, for its time budget.

    A resumed run keeps the choice that it has stored, because timing again could choose another.
    """
    minutes, phases = recipe.schedule.minutes, recipe.schedule.phases
    auto = recipe.model.size == AUTO
    if minutes is None or (not auto and all(phase.batch_tokens for phase in phases)):
        return recipe
    if site.stored is not None:
        shape = {name: getattr(site.stored.model, name) for name in ("size", "layers")}
        known = [phase.batch_tokens for phase in site.stored.schedule.phases]
        return filled_in(recipe, shape if auto else {}, *known)
    say, processes = site.folder.say, site.processes
    shapes = CANDIDATES if auto else {str(recipe.model.size): {}}
    for number, (size, shape) in enumerate(shapes.items()):
        tried = filled_in(recipe, shape, SMALLEST)
        timed = _measured(tried, corpus.tokenizer.vocabulary, processes)
        step = _step_tokens(tried, timed, minutes, processes.world)
        candidate = filled_in(recipe, shape, step)
        # A batch size that the recipe sets is what counts, not the one just computed.
        step = candidate.schedule.phases[0].batch_tokens or step
        speed = timed.speed(step, processes.world)
        seen = 60 * minutes * speed
        counted = min(seen, REPEATS * corpus.size)
        say(
            f"{size}: about {speed:,.0f} tokens a second, {counted / timed.weights:.2g} for each "
            f"of its {timed.weights:,} weights in {minutes:g} minutes"
        )
        # Larger sizes see still fewer tokens per weight, so they are not timed.
        if number and counted < NEEDED * timed.weights:
            break
        chosen, found = f"{size}, {step:,} tokens a step", candidate
        passes = seen / corpus.size
    say(f"chosen: {chosen}; the text is read {passes:.2g} times")
    if passes > REPEATS:
        say(f"warning: much more than {REPEATS} times was never tried. More text would help.")
    return found


def filled_in(recipe: Recipe, shape: Mapping[str, Any], *batch_tokens: int | None) -> Recipe:
    """Fill in the size and the batch size of each phase, where the recipe leaves them open.

    The last of `batch_tokens` also holds for all further phases.
    """
    model = recipe.model
    given = {name: value for name, value in shape.items() if getattr(model, name) in (None, AUTO)}
    phases = [
        phase
        if phase.batch_tokens
        else phase.model_copy(update={"batch_tokens": batch_tokens[min(i, len(batch_tokens) - 1)]})
        for i, phase in enumerate(recipe.schedule.phases)
    ]
    return recipe.changed(model=given, schedule={"phases": phases})


def _step_tokens(recipe: Recipe, timed: StepTiming, minutes: float, world: int) -> int:
    """Return the power of two that gives about STEPS steps, rounded up to what processes share."""

    def steps(tokens: int) -> float:
        return 60 * minutes * timed.speed(tokens, world) / tokens

    step = SMALLEST
    # The square root of two rounds to the nearest power of two.
    while step < LARGEST and steps(2 * step) >= STEPS / 2**0.5:
        step *= 2
    # Whole sequences of every phase, equally many for each process.
    unit = world * math.lcm(*(phase.length for phase in recipe.schedule.phases))
    return -(-step // unit) * unit


def _measured(recipe: Recipe, vocabulary: Vocabulary, processes: Processes) -> StepTiming:
    """Time steps of one micro-batch; average over processes, so that all choose the same size."""
    # Timed as a single process; `Timed.speed` divides the work among all of them.
    alone = Processes(device=processes.device)
    precision = choose_precision(recipe.loop.precision, alone.device)
    objective = objective_for(recipe, vocabulary)
    before = torch.get_rng_state()  # dropout draws below; the run must not notice
    shape = Shape.of(recipe.model.config(len(vocabulary)))
    learner = learner_of(objective, shape, recipe.seed)
    network = learner.network.train()
    module = TrainingModule(network, objective, learner.companions).to(alone.device)
    batch = objective.prepare(_made_up(recipe, vocabulary), 0, 0.0)
    optimizer = make_optimizer(module, recipe.optimizer)
    take, site = step_for(objective), StepSite(alone, precision, clip=1.0)

    def step() -> None:
        take(module, [MicroBatch(batch, 0)], site)
        optimizer.step()

    seconds = [_seconds(step, alone.device) for _ in range(3)]  # the first step is slow: warm-up
    rest = min(_seconds(optimizer.step, alone.device) for _ in range(2))
    torch.set_rng_state(before)
    # The step includes the optimizer, which a step with many micro-batches pays only once.
    own = [max(min(seconds) - rest, 1e-6), rest]
    piece, rest = (total / processes.world for total in processes.total(own))
    return StepTiming(piece, rest, batch.real, count_parameters(network.encoder.blocks))


def _seconds(do: Callable[[], object], device: torch.device) -> float:
    begun = time.monotonic()
    do()
    if device.type == "cuda":  # kernels are only queued; wait until they have run
        torch.cuda.synchronize(device)
    return time.monotonic() - begun


def _made_up(recipe: Recipe, vocabulary: Vocabulary) -> Batch:
    """Make a full micro-batch of random tokens, without padding."""
    length = recipe.schedule.phases[0].length
    rows = max(recipe.loop.micro_batch_tokens // length, 1)
    rng = np.random.default_rng(0)
    first = len(SPECIALS) if len(vocabulary) > len(SPECIALS) else 0
    tokens = rng.integers(first, len(vocabulary), (rows, length))
    texts = [CorpusExample(row, np.zeros_like(row), np.zeros(length, dtype=bool)) for row in tokens]
    batch = collate(texts, [[row] for row in range(rows)], pad_id=vocabulary.pad)
    return batch.with_examples(
        number=torch.arange(rows) * 2**20,
        pair=torch.full((rows,), NO_PAIR),
        continues=torch.zeros_like(batch.tokens, dtype=torch.bool),
    )
