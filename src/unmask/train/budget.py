"""Minutes, machine, text -> a size: what `model.size = "auto"` stands for.

A larger network learns more from each token and sees fewer of them. Which one ends lower depends
on how many tokens it can see for each of its weights, so the machine is timed first, with a batch
of each size from the smallest on.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data.batches import Batch, collate
from unmask.data.corpus import Corpus
from unmask.data.examples import UNSAID
from unmask.errors import SettingsError
from unmask.model.config import SIZES
from unmask.model.network import Network, count_parameters
from unmask.objectives.base import OnePass
from unmask.settings import build
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.distributed import Processes
from unmask.train.optim import make_optimizer
from unmask.train.recipe import AUTO, Recipe
from unmask.train.step import Piece, Trainee, take_step

NEEDED = 3.0  # tokens for each weight of the blocks, below which a size does not pay
STEPS = 1000  # a run should have about so many
SMALLEST, LARGEST = 2048, 32_768  # tokens of a step


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
    """A recipe with its size settled, and the tokens of a step with it.

    `begun` is the recipe of a run that is resumed: it has chosen.
    """
    if table.get("model", {}).get("size") != AUTO:
        return table
    if begun is not None:
        return _settled(table, begun["model"]["size"], begun["phases"][0]["batch_tokens"])
    minutes = table.get("schedule", {}).get("minutes")
    if minutes is None:
        raise SettingsError(
            f'recipe [model]: size is "{AUTO}", which needs to know how long the run is. Give '
            "--minutes, or a size."
        )
    chosen, tokens = "", 0.0
    for number, size in enumerate(SIZES):
        recipe = build(Recipe, _settled(table, size, SMALLEST), where="recipe")
        speed, weights = _measured(recipe, corpus.tokenizer.vocabulary, objective)
        speed = processes.total([speed])[0]  # of all processes together
        seen = 60 * minutes * speed
        say(
            f"{size}: about {speed:,.0f} tokens a second, {seen / weights:.2g} for each of its "
            f"{weights:,} weights in {minutes:g} minutes"
        )
        if number and seen < NEEDED * weights:
            break
        chosen, tokens = size, seen
    step = 2 ** round(np.log2(np.clip(tokens / STEPS, SMALLEST, LARGEST)))
    say(f"chosen: {chosen}, {step:,} tokens a step")
    return _settled(table, chosen, step)


def _settled(table: dict[str, Any], size: str, batch_tokens: int) -> dict[str, Any]:
    phases = [{**phase, "batch_tokens": batch_tokens} for phase in table.get("phases") or [{}]]
    return {**table, "model": {**table["model"], "size": size}, "phases": phases}


def _measured(
    recipe: Recipe,
    vocabulary: Vocabulary,
    objective: Callable[[Recipe, Vocabulary], tuple[OnePass, Any]],
) -> tuple[float, int]:
    """Tokens a second of a step of one batch, and how many weights the blocks have."""
    asked, heads = objective(recipe, vocabulary)
    before = torch.get_rng_state()
    network = Network(recipe.network(len(vocabulary)), heads).train()
    batch = asked.prepare(_made_up(recipe, vocabulary), 0)
    trainee = Trainee(network, asked)
    optimizer = make_optimizer(trainee, recipe.optimizer)
    seconds = []
    for _ in range(3):  # the first is slow
        begun = time.monotonic()
        take_step(trainee, [Piece(batch, 0)], optimizer, Processes(), clip=1.0)
        seconds.append(time.monotonic() - begun)
    torch.set_rng_state(before)
    return batch.real / min(seconds), count_parameters(network.encoder.blocks)


def _made_up(recipe: Recipe, vocabulary: Vocabulary) -> Batch:
    """Full rows of random tokens."""
    length = recipe.phases[0].length
    rows = max(recipe.train.micro_tokens // length, 1)
    rng = np.random.default_rng(0)
    tokens = rng.integers(len(SPECIALS), max(len(vocabulary), len(SPECIALS) + 1), (rows, length))
    texts = [Made(row, np.zeros_like(row)) for row in tokens]
    batch = collate(texts, [[row] for row in range(rows)], pad_id=vocabulary.pad)
    return batch.with_examples(
        number=torch.arange(rows) * 2**20,
        pair=torch.full((rows,), UNSAID),
        continues=torch.zeros_like(batch.tokens, dtype=torch.bool),
    )
