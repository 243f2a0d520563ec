"""Minutes, machine and text -> a size: what `model.size = "auto"` stands for.

A larger network learns more from each token and sees fewer of them. Which one ends lower depends
on how many tokens it can see for each of its weights, so the machine is timed first, with a batch
of each size from the smallest on. A text that is read again counts again, up to a limit.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data.batches import Batch, collate
from unmask.data.corpus import Corpus
from unmask.data.examples import UNSAID
from unmask.model.config import SIZES
from unmask.model.network import Network, count_parameters
from unmask.objectives.base import OnePass
from unmask.settings import build
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.distributed import Processes
from unmask.train.optim import make_optimizer
from unmask.train.recipe import AUTO, Recipe
from unmask.train.step import Piece, Trainee, choose_precision, take_step

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


@dataclass(frozen=True)
class Made:
    """A made-up text."""

    ids: NDArray[np.int64]
    segments: NDArray[np.int64]


def choose(
    table: dict[str, Any],
    begun: dict[str, Any] | None,
    corpus: Corpus,
    objective: Callable[[Recipe, Vocabulary], tuple[OnePass, Any]],
    processes: Processes,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """A recipe with its size settled, and with it the tokens of a step, unless they are given.

    `begun` is the recipe of a run that is resumed: it has chosen.
    """
    if table.get("model", {}).get("size") != AUTO:
        return table
    if begun is not None:
        shape = {key: begun["model"][key] for key in ("size", "layers") if key in begun["model"]}
        return _settled(table, shape, begun["phases"][0]["batch_tokens"])
    minutes = build(Recipe, table, where="recipe").schedule.minutes
    assert minutes is not None  # a recipe without a clock is refused
    for number, (size, shape) in enumerate(LADDER.items()):
        recipe = build(Recipe, _settled(table, shape, SMALLEST), where="recipe")
        timed = _mean(
            _measured(recipe, corpus.tokenizer.vocabulary, objective, processes), processes
        )
        settled = _settled(table, shape, _step_tokens(recipe, timed, minutes, processes.world))
        step = settled["phases"][0]["batch_tokens"]
        speed = timed.speed(step, processes.world)
        seen = 60 * minutes * speed
        counted = min(seen, REPEATS * corpus.size)
        say(
            f"{size}: about {speed:,.0f} tokens a second, {counted / timed.weights:.2g} for each "
            f"of its {timed.weights:,} weights in {minutes:g} minutes"
        )
        if number and counted < NEEDED * timed.weights:
            break
        chosen, found = f"{size}, {step:,} tokens a step", settled
        passes = seen / corpus.size
    say(f"chosen: {chosen}; the text is read {passes:.2g} times")
    if passes > REPEATS:
        say(f"warning: much more than {REPEATS} times was never tried. More text would help.")
    return found


def _settled(table: dict[str, Any], shape: dict[str, Any], batch_tokens: int) -> dict[str, Any]:
    """With a size, and with so many tokens a step where the recipe leaves them open."""
    phases = [{"batch_tokens": batch_tokens, **phase} for phase in table.get("phases") or [{}]]
    given = {key: value for key, value in table["model"].items() if key != "size"}
    return {**table, "model": {**shape, **given}, "phases": phases}


def _step_tokens(recipe: Recipe, timed: Timed, minutes: float, world: int) -> int:
    """The power of two that gives a run about STEPS steps, if processes can share it."""

    def steps(tokens: int) -> float:
        return 60 * minutes * timed.speed(tokens, world) / tokens

    step = SMALLEST
    while step < LARGEST and steps(2 * step) >= STEPS / 2**0.5:
        step *= 2
    unit = world * math.lcm(*(phase.length for phase in recipe.phases))
    return -(-step // unit) * unit


def _measured(
    recipe: Recipe,
    vocabulary: Vocabulary,
    objective: Callable[[Recipe, Vocabulary], tuple[OnePass, Any]],
    processes: Processes,
) -> Timed:
    """Time some steps of one piece on this process's device."""
    alone = Processes(device=processes.device)
    precision = choose_precision(recipe.train.precision, alone.device)
    asked, heads = objective(recipe, vocabulary)
    before = torch.get_rng_state()
    network = Network(recipe.network(len(vocabulary)), heads).to(alone.device).train()
    batch = asked.prepare(_made_up(recipe, vocabulary), 0)
    trainee = Trainee(network, asked)
    optimizer = make_optimizer(trainee, recipe.optimizer)

    def step() -> None:
        take_step(trainee, [Piece(batch, 0)], optimizer, alone, clip=1.0, precision=precision)

    seconds = [_seconds(step, alone.device) for _ in range(3)]  # the first is slow
    rest = min(_seconds(optimizer.step, alone.device) for _ in range(2))
    torch.set_rng_state(before)
    piece = max(min(seconds) - rest, 1e-6)
    return Timed(piece, rest, batch.real, count_parameters(network.encoder.blocks))


def _seconds(do: Callable[[], object], device: torch.device) -> float:
    begun = time.monotonic()
    do()
    if device.type == "cuda":  # which has only been told what to do
        torch.cuda.synchronize(device)
    return time.monotonic() - begun


def _mean(timed: Timed, processes: Processes) -> Timed:
    """The same on all processes: they must choose alike."""
    piece, rest = processes.total([timed.piece, timed.rest])
    return replace(timed, piece=piece / processes.world, rest=rest / processes.world)


def _made_up(recipe: Recipe, vocabulary: Vocabulary) -> Batch:
    """Full rows of random tokens."""
    length = recipe.phases[0].length
    rows = max(recipe.train.micro_tokens // length, 1)
    rng = np.random.default_rng(0)
    first = len(SPECIALS) if len(vocabulary) > len(SPECIALS) else 0
    tokens = rng.integers(first, len(vocabulary), (rows, length))
    texts = [Made(row, np.zeros_like(row)) for row in tokens]
    batch = collate(texts, [[row] for row in range(rows)], pad_id=vocabulary.pad)
    return batch.with_examples(
        number=torch.arange(rows) * 2**20,
        pair=torch.full((rows,), UNSAID),
        continues=torch.zeros_like(batch.tokens, dtype=torch.bool),
    )
