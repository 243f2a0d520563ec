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
from numpy.typing import NDArray

from unmask.data.batch import Batch, collate
from unmask.data.corpus.corpus import Corpus
from unmask.data.corpus.examples import NO_PAIR
from unmask.data.corpus.stream import CorpusExample
from unmask.jobs.inputs.corpus import objective_for
from unmask.jobs.inputs.learner import learner_of
from unmask.model.config import SIZES
from unmask.model.network import count_parameters
from unmask.model.shape import Shape
from unmask.objectives.base import TextStatistics
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
MIN_TOKENS_PER_WEIGHT = 4.0
MAX_USEFUL_PASSES = 25  # passes over a text that count: it was still learned from after 27
TARGET_STEPS = 5000  # aimed at: in a short run, steps count more than tokens
# Batch sizes in tokens; below the minimum, the optimizer takes too much of the time.
MIN_BATCH_TOKENS, MAX_BATCH_TOKENS = 1024, 32_768


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
        stored_tokens = [phase.batch_tokens for phase in site.stored.schedule.phases]
        return filled_in(recipe, shape if auto else {}, *stored_tokens)
    say, processes = site.folder.say, site.processes
    shapes = CANDIDATES if auto else {str(recipe.model.size): {}}
    for index, (size, shape) in enumerate(shapes.items()):
        probe = filled_in(recipe, shape, MIN_BATCH_TOKENS)
        timing = _time_step(probe, corpus.tokenizer.vocabulary, processes)
        batch_tokens = _step_tokens(probe, timing, minutes, processes.world)
        candidate = filled_in(recipe, shape, batch_tokens)
        # A batch size that the recipe sets is what counts, not the one just computed.
        batch_tokens = candidate.schedule.phases[0].batch_tokens or batch_tokens
        speed = timing.speed(batch_tokens, processes.world)
        tokens_seen = 60 * minutes * speed
        useful_tokens = min(tokens_seen, MAX_USEFUL_PASSES * corpus.size)
        say(
            f"{size}: about {speed:,.0f} tokens per second, which is "
            f"{useful_tokens / timing.weights:.2g} in {minutes:g} minutes for each of its "
            f"{timing.weights:,} weights"
        )
        # Larger sizes see still fewer tokens per weight, so they are not timed.
        if index and useful_tokens < MIN_TOKENS_PER_WEIGHT * timing.weights:
            break
        choice, chosen_recipe = f"{size}, batch size {batch_tokens:,} tokens", candidate
        passes = tokens_seen / corpus.size
    say(f"chosen: {choice}; training makes {passes:.2g} passes over the corpus")
    if passes > MAX_USEFUL_PASSES:
        say(
            f"warning: more than {MAX_USEFUL_PASSES} passes over a corpus have not been tested. "
            "More text would help."
        )
    return chosen_recipe


def filled_in(recipe: Recipe, shape: Mapping[str, Any], *batch_tokens: int | None) -> Recipe:
    """Fill in the size and the batch size of each phase, where the recipe leaves them open.

    The last of `batch_tokens` also holds for all further phases.
    """
    model = recipe.model
    open_settings = {
        name: value for name, value in shape.items() if getattr(model, name) in (None, AUTO)
    }
    phases = [
        phase
        if phase.batch_tokens
        else phase.model_copy(update={"batch_tokens": batch_tokens[min(i, len(batch_tokens) - 1)]})
        for i, phase in enumerate(recipe.schedule.phases)
    ]
    return recipe.changed(model=open_settings, schedule={"phases": phases})


def _step_tokens(recipe: Recipe, timing: StepTiming, minutes: float, world: int) -> int:
    """Return the power of two that gives about STEPS steps, rounded up to what processes share."""

    def steps(tokens: int) -> float:
        return 60 * minutes * timing.speed(tokens, world) / tokens

    batch_tokens = MIN_BATCH_TOKENS
    # The square root of two rounds to the nearest power of two.
    while batch_tokens < MAX_BATCH_TOKENS and steps(2 * batch_tokens) >= TARGET_STEPS / 2**0.5:
        batch_tokens *= 2
    # Whole sequences of every phase, equally many for each process.
    unit = world * math.lcm(*(phase.length for phase in recipe.schedule.phases))
    return -(-batch_tokens // unit) * unit


def _time_step(recipe: Recipe, vocabulary: Vocabulary, processes: Processes) -> StepTiming:
    """Time steps of one micro-batch; average over processes, so that all choose the same size."""
    # Timed as a single process; `StepTiming.speed` divides the work among all of them.
    alone = Processes(device=processes.device)
    precision = choose_precision(recipe.loop.precision, alone.device)
    objective = objective_for(recipe, vocabulary)
    rng_state = torch.get_rng_state()  # dropout draws below; the run must not notice
    shape = Shape.of(recipe.model.config(len(vocabulary)))
    # Weights decide nothing about the time of a step, so the corpus is not counted for them.
    learner = learner_of(objective, shape, recipe.seed, statistics=_Uniform(len(vocabulary)))
    network = learner.network.train()
    module = TrainingModule(network, objective, learner.companions).to(alone.device)
    batch = objective.prepare(_random_batch(recipe, vocabulary), 0, 0.0)
    optimizer = make_optimizer(module, recipe.optimizer)
    compute_step, site = step_for(objective), StepSite(alone, precision, clip=1.0)

    def step() -> None:
        compute_step(module, [MicroBatch(batch, 0)], site)
        optimizer.step()

    seconds = [_time_call(step, alone.device) for _ in range(3)]  # the first step is slow: warm-up
    optimizer_seconds = min(_time_call(optimizer.step, alone.device) for _ in range(2))
    torch.set_rng_state(rng_state)
    # The step includes the optimizer, which a step with many micro-batches pays only once.
    local_seconds = [max(min(seconds) - optimizer_seconds, 1e-6), optimizer_seconds]
    weights = count_parameters(network.encoder.blocks)
    totals = processes.total(local_seconds)
    micro_batch_seconds, optimizer_seconds = (total / processes.world for total in totals)
    return StepTiming(micro_batch_seconds, optimizer_seconds, batch.real, weights)


class _Uniform(TextStatistics):
    """Statistics of a text in which all tokens are equally frequent."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Relative frequency of each token of the vocabulary.  [V]"""
        return np.full(self.vocab_size, 1.0 / self.vocab_size)


def _time_call(call: Callable[[], object], device: torch.device) -> float:
    started = time.monotonic()
    call()
    if device.type == "cuda":  # kernels are only queued; wait until they have run
        torch.cuda.synchronize(device)
    return time.monotonic() - started


def _random_batch(recipe: Recipe, vocabulary: Vocabulary) -> Batch:
    """Make a full micro-batch of random tokens, without padding."""
    length = recipe.schedule.phases[0].length
    rows = max(recipe.loop.micro_batch_tokens // length, 1)
    rng = np.random.default_rng(0)
    first_id = len(SPECIALS) if len(vocabulary) > len(SPECIALS) else 0
    tokens = rng.integers(first_id, len(vocabulary), (rows, length))
    texts = [CorpusExample(row, np.zeros_like(row), np.zeros(length, dtype=bool)) for row in tokens]
    batch = collate(texts, [[row] for row in range(rows)], pad_id=vocabulary.pad)
    return batch.with_examples(
        number=torch.arange(rows) * 2**20,
        pair=torch.full((rows,), NO_PAIR),
        continues=torch.zeros_like(batch.tokens, dtype=torch.bool),
    )
