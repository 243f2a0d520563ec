"""Corpus -> a pre-trained model: everything a run needs, put together.

The composition root: it knows the corpus, the network, the objectives and the loop, which do not
know each other.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from unmask.data import draws
from unmask.data.corpus import Corpus, open_corpus
from unmask.data.examples import refuse_too_few, split_documents
from unmask.data.stream import Cursor, Stream
from unmask.errors import SettingsError, unknown
from unmask.model.config import HeadsConfig
from unmask.model.network import Network, count_parameters
from unmask.objectives import OBJECTIVES
from unmask.objectives.base import OnePass, Reader
from unmask.settings import build
from unmask.text.vocabulary import Vocabulary
from unmask.train.board import Board
from unmask.train.budget import choose
from unmask.train.course import Course
from unmask.train.distributed import Processes, processes, restarts
from unmask.train.evaluate import frequencies
from unmask.train.heldout import HeldOut, Show
from unmask.train.loop import Loop
from unmask.train.preflight import preflight
from unmask.train.recipe import Recipe
from unmask.train.run import MODEL, RECIPE, RunFolder, begin, environment, open_run, stored_recipe
from unmask.train.signals import Wish, stop_wishes
from unmask.train.step import Piece, Trainee
from unmask.train.written import BOARD

_WEIGHTS, _MASKS, _DROPOUT = range(200, 203)  # one key per kind of draw


class CorpusSource:
    """The batches of each step, by phase."""

    def __init__(
        self, corpus: Corpus, recipe: Recipe, objective: OnePass, processes: Processes
    ) -> None:
        self.recipe, self.objective, self.processes = recipe, objective, processes
        documents, _ = split_documents(len(corpus.documents) - 1, recipe.examples.held_out)
        refuse_too_few(corpus, documents, recipe.examples)
        self.streams = [
            Stream(corpus, documents, recipe.examples, recipe.seed, phase.length)
            for phase in recipe.phases
        ]

    def pieces(
        self, cursor: dict[str, int], step: int, progress: float
    ) -> tuple[Sequence[Piece], dict[str, int]]:
        """The rows of a step that are this process's, in pieces that fit the cache."""
        number = self._phase(progress)
        phase, stream = self.recipe.phases[number], self.streams[number]
        same = cursor.get("phase", 0) == number
        at = Cursor(cursor.get("epoch", 0), cursor.get("row", 0)) if same else Cursor()
        rows, then = stream.take(at, phase.rows)
        size = self.recipe.micro_rows(phase, self.processes.world)
        groups = [rows[i : i + size] for i in range(0, len(rows), size)]
        root = draws.key(self.recipe.seed, _MASKS)
        objective = self.objective.at(progress)
        pieces = [
            Piece(
                objective.prepare(stream.batch(group), root),
                draws.key(self.recipe.seed, _DROPOUT, step, place) % 2**63,
            )
            for place, group in enumerate(groups)
            if place % self.processes.world == self.processes.rank
        ]
        return pieces, {"phase": number, "epoch": then.epoch, "row": then.row}

    def _phase(self, progress: float) -> int:
        """Which phase a moment of the run is in."""
        reached = 0.0
        for number, phase in enumerate(self.recipe.phases):
            reached += phase.share
            if progress < reached - 1e-9:
                return number
        return len(self.recipe.phases) - 1


def pretrain(
    corpus_path: Path,
    out: Path,
    table: dict[str, Any] | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    shard: bool = False,
    check: bool = True,
    tensorboard: bool = False,
    notice: Callable[[str], None] = print,
    show: Show | None = None,
    checked: Callable[[int], None] | None = None,
) -> Path:
    """Pre-train on a corpus; `table` is a recipe, None to resume with the one that is there.

    `show` is told every step, `checked` the tokens of each shard that was compared with its
    digest. Returns the folder of the model.
    """
    begun = time.monotonic()
    with stop_wishes() as wish, processes() as group:
        resume = resume or restarts() > 0  # torchrun has started the workers again
        with open_run(
            out, resume=resume, overwrite=overwrite, writes=group.first, notice=notice
        ) as folder:
            if tensorboard and group.first:
                folder.claim(BOARD)
                folder.listener = Board(out / BOARD)
            corpus = open_corpus(corpus_path, check=group.first, progress=checked)
            group.refuse_difference(float(int(corpus.digest[:12], 16)), "the corpus")
            if table is None:
                table = stored_recipe(out)
            else:
                before = stored_recipe(out) if (out / RECIPE).exists() else None
                table = choose(table, before, corpus, objective_for, group, folder.say)
            recipe = build(Recipe, table, where="recipe")
            return _train(
                folder,
                corpus,
                recipe,
                group,
                wish,
                shard=shard,
                check=check,
                show=show,
                begun=begun,
            )


def _train(
    folder: RunFolder,
    corpus: Corpus,
    recipe: Recipe,
    group: Processes,
    wish: Wish,
    *,
    shard: bool,
    check: bool,
    show: Show | None,
    begun: float,
) -> Path:
    objective, network = _begun(recipe, corpus)
    facts = environment(
        corpus=corpus.digest,
        tokenizer=corpus.tokenizer.digest(),
        processes=group.world,
        shard=shard,
    )
    resolved = recipe.model_dump(exclude_none=True)
    source = CorpusSource(corpus, recipe, objective, group)
    evaluate = HeldOut(folder, corpus, recipe, objective, group, network)
    course = Course(
        network,
        Trainee(network, objective),
        source,
        corpus.tokenizer,
        recipe.optimizer,
        recipe.schedule,
        recipe.train.model_copy(update={"evaluations": evaluate.count}),
        group,
        folder,
        resolved,
        {"corpus": corpus.path.name, "corpus sha256": corpus.digest},
        wish=wish,
        shard=shard,
        evaluate=evaluate if evaluate.evaluation else None,
        report=evaluate.report,
        watch=evaluate.watching(show),
        begun=begun,
    )
    folder.say(
        f"{count_parameters(network):,} parameters, {corpus.size:,} tokens, "
        f"{recipe.phases[0].rows * recipe.phases[0].length:,} tokens a step"
    )
    fresh = not any(folder.checkpoints.glob("step-*"))
    if check and fresh and group.first:
        preflight(network, objective, source, corpus, evaluate.baselines, folder.say)
    group.wait()
    loop = Loop(course)
    # Only now: what cannot be trained is not a run.
    begin(folder, resolved, facts, lambda t: _spelled_out(t, corpus.tokenizer.vocabulary))
    loop.resume()
    loop.run()
    evaluate.report()
    return folder.path / MODEL


def _begun(recipe: Recipe, corpus: Corpus) -> tuple[OnePass, Network]:
    """What is to be learned, and a network that has learned nothing yet."""
    vocabulary = corpus.tokenizer.vocabulary
    objective, heads = objective_for(recipe, vocabulary)
    torch.manual_seed(draws.key(recipe.seed, _WEIGHTS) % 2**63)
    network = Network(recipe.network(len(vocabulary)), heads)
    objective.begin(network, lambda: frequencies(corpus))
    return objective, network


def objective_for(recipe: Recipe, vocabulary: Vocabulary) -> tuple[OnePass, HeadsConfig]:
    """What the network is to learn, and the heads for it.

    The objective that the recipe names, and the order of pairs where its examples have pairs.
    """
    table = dict(recipe.objective)
    wanted = {str(table.pop("name")): table}
    if recipe.examples.pairs != "off":
        wanted.setdefault("pairs", {})
    elif "pairs" in wanted:
        raise SettingsError(
            'recipe [objective]: name is "pairs" and examples.pairs is "off"; need pairs to tell '
            'apart. Set examples.pairs="nsp" or "sop".'
        )
    readers: list[Reader] = []
    heads: dict[str, Any] = {"pooler": False}
    for name, settings in wanted.items():
        if name not in OBJECTIVES:
            raise SettingsError(f"recipe [objective]: {unknown('objective', name, OBJECTIVES)}")
        kind = OBJECTIVES[name]
        readers.append(kind(build(kind.settings, settings, where="recipe [objective]"), vocabulary))
        heads |= kind.heads
    return OnePass(readers), HeadsConfig(**heads)


def _spelled_out(table: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """A recipe with every setting of its network and objective in it, whoever left them out."""
    recipe = build(Recipe, table, where="recipe")
    model = recipe.network(len(vocabulary)).model_dump()
    asked = objective_for(recipe, vocabulary)[0].readers[0].how.model_dump()
    own = {"model": {**recipe.model, **model}, "objective": {**recipe.objective, **asked}}
    return {**recipe.model_dump(), **own}
