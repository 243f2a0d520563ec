"""Minutes, machine and text -> a size: what `model.size = "auto"` stands for.

A larger network learns more from each token and sees fewer of them. Which one ends lower depends
on how many tokens it can see for each of its weights, so the machine is timed first, with a batch
of each size from the smallest on. A text that is read again counts again, up to a limit.
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

# BERT's sizes, and one between the two smallest, which are far apart.
LADDER: dict[str, dict[str, Any]] = {
    "tiny": {"size": "tiny"},
    "tiny with four layers": {"size": "tiny", "layers": 4},
    **{name: {"size": name} for name in SIZES if name != "tiny"},
}
NEEDED = 4.0  # tokens for each weight of the blocks, below which a size does not pay
REPEATS = 25  # times that a text may be read; it still taught something then
STEPS = 5000  # a run should have about so many
SMALLEST, LARGEST = 1024, 32_768  # tokens of a step


@dataclass(frozen=True)
class Timed:
    """What a step of a size costs."""

    piece: float  # seconds of a batch that is computed at a time
    rest: float  # seconds that a step takes besides, however many pieces it has
    tokens: int  # of a piece
    weights: int  # of the blocks

    def speed(self, step: float, world: int = 1) -> float:
        """Tokens a second of steps of so many tokens, shared by so many processes."""
        return step / (step / self.tokens * self.piece / world + self.rest)


def choose(recipe: Recipe, corpus: Corpus, site: Site) -> Recipe:
    """Settle the size and the tokens of a step, where the recipe leaves them open.

    A run that is resumed has chosen already.
    """
    minutes, phases = recipe.schedule.minutes, recipe.schedule.phases
    auto = recipe.model.size == AUTO
    if minutes is None or (not auto and all(phase.batch_tokens for phase in phases)):
        return recipe
    if site.stored is not None:
        shape = {name: getattr(site.stored.model, name) for name in ("size", "layers")}
        known = [phase.batch_tokens for phase in site.stored.schedule.phases]
        return settled(recipe, shape if auto else {}, *known)
    say, processes = site.folder.say, site.processes
    shapes = LADDER if auto else {str(recipe.model.size): {}}
    for number, (size, shape) in enumerate(shapes.items()):
        tried = settled(recipe, shape, SMALLEST)
        timed = _measured(tried, corpus.tokenizer.vocabulary, processes)
        step = _step_tokens(tried, timed, minutes, processes.world)
        candidate = settled(recipe, shape, step)
        step = candidate.schedule.phases[0].batch_tokens or step
        speed = timed.speed(step, processes.world)
        seen = 60 * minutes * speed
        counted = min(seen, REPEATS * corpus.size)
        say(
            f"{size}: about {speed:,.0f} tokens a second, {counted / timed.weights:.2g} for each "
            f"of its {timed.weights:,} weights in {minutes:g} minutes"
        )
        if number and counted < NEEDED * timed.weights:
            break
        chosen, found = f"{size}, {step:,} tokens a step", candidate
        passes = seen / corpus.size
    say(f"chosen: {chosen}; the text is read {passes:.2g} times")
    if passes > REPEATS:
        say(f"warning: much more than {REPEATS} times was never tried. More text would help.")
    return found


def settled(recipe: Recipe, shape: Mapping[str, Any], *batch_tokens: int | None) -> Recipe:
    """Fill in a size, and the batch size of each phase, where the recipe leaves them open.

    The last batch size is that of all further phases.
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


def _step_tokens(recipe: Recipe, timed: Timed, minutes: float, world: int) -> int:
    """The power of two that gives a run about STEPS steps, if processes can share it."""

    def steps(tokens: int) -> float:
        return 60 * minutes * timed.speed(tokens, world) / tokens

    step = SMALLEST
    while step < LARGEST and steps(2 * step) >= STEPS / 2**0.5:
        step *= 2
    unit = world * math.lcm(*(phase.length for phase in recipe.schedule.phases))
    return -(-step // unit) * unit


def _measured(recipe: Recipe, vocabulary: Vocabulary, processes: Processes) -> Timed:
    """Time some steps of one micro-batch; the mean of all processes, so that they choose alike."""
    alone = Processes(device=processes.device)
    precision = choose_precision(recipe.loop.precision, alone.device)
    objective = objective_for(recipe, vocabulary)
    before = torch.get_rng_state()
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

    seconds = [_seconds(step, alone.device) for _ in range(3)]  # the first is slow
    rest = min(_seconds(optimizer.step, alone.device) for _ in range(2))
    torch.set_rng_state(before)
    own = [max(min(seconds) - rest, 1e-6), rest]
    piece, rest = (total / processes.world for total in processes.total(own))
    return Timed(piece, rest, batch.real, count_parameters(network.encoder.blocks))


def _seconds(do: Callable[[], object], device: torch.device) -> float:
    begun = time.monotonic()
    do()
    if device.type == "cuda":  # which has only been told what to do
        torch.cuda.synchronize(device)
    return time.monotonic() - begun


def _made_up(recipe: Recipe, vocabulary: Vocabulary) -> Batch:
    """Full rows of random tokens."""
    length = recipe.schedule.phases[0].length
    rows = max(recipe.loop.micro_tokens // length, 1)
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
