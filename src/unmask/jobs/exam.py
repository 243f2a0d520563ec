"""Held-out records -> scores, with the help of all processes: each answers a share of them.

Whole records are shared, so that every answer is what one process alone would give; answers travel
between processes as JSON.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from math import fsum
from typing import Any

from pydantic import TypeAdapter

from unmask.data.parallel import Pair
from unmask.errors import DataError
from unmask.jobs.labelled import Labelled
from unmask.model.network import Network
from unmask.tasks import engine
from unmask.tasks.base import Tally, answers
from unmask.tasks.engine import Live
from unmask.tasks.translate import Tokenizers, Translate, perplexity, said_of
from unmask.tasks.translate import Tokens as PairTokens
from unmask.train.answers import Scored
from unmask.train.distributed import Processes
from unmask.train.ingredients import Tokens
from unmask.train.recipe import Recipe

Measured = tuple[dict[str, Scored], list[float]]


class Answered:
    """The answers of one task, or of several by their names, with the tasks' own metrics."""

    def __init__(self, parts: Mapping[str, Labelled], tokens: Tokens, processes: Processes) -> None:
        self.parts, self.tokens, self.processes = parts, tokens, processes

    def measure(self, network: Network) -> Measured:
        """See Exam."""
        measured, losses = {}, []
        for name, part in self.parts.items():
            measured[name], loss = self._scored(part, network.only(name) if name else network)
            losses.append(loss)
        return measured, losses

    def _scored(self, part: Labelled, network: Network) -> tuple[Scored, float]:
        tally = Tally()
        mine = part.dev[self.processes.rank :: self.processes.world]
        own = answers(
            Live(network),
            self.tokens.source,
            part.task,
            mine,
            limit=self.tokens.max_length,
            known=True,
            tally=tally,
        )
        given = gathered([answer for _, answer in own], part.task.answers, self.processes)
        loss, count = self.processes.total([fsum(tally.losses), float(sum(tally.counts))])
        task, said = part.task.settle(part.dev, given)
        scores, detail = task.score(part.dev, said), task.detail(part.dev, said)
        return Scored(task.name, task.metric, task.how, scores, detail), loss / max(count, 1)


def gathered(own: Sequence[Any], kind: type, processes: Processes) -> list[Any]:
    """The answers of all processes, each to every world-th record, in the order of records."""
    if processes.world == 1:
        return list(own)
    adapter: TypeAdapter[Any] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    plain = [asdict(answer) if is_dataclass(kind) else answer for answer in own]
    shares = [
        adapter.validate_python(json.loads(payload))
        for payload in processes.gather(json.dumps(plain).encode("utf-8"))
    ]
    found: list[Any] = [None] * sum(map(len, shares))
    for rank, share in enumerate(shares):
        found[rank :: processes.world] = share
    return found


class Translated:
    """Held-out pairs: the loss of their words, and how translations compare with them."""

    def __init__(
        self,
        task: Translate,
        tokenizers: Tokenizers,
        pairs: Sequence[Pair],
        max_length: int,
        recipe: Recipe,
        processes: Processes,
    ) -> None:
        self.task, self.tokenizers, self.processes = task, tokenizers, processes
        most = recipe.evaluate.tokens
        self.pairs: list[Pair] = []
        self.tokens: list[PairTokens] = []
        total = 0
        for pair, own in zip(pairs, tokenizers.tokens(pairs), strict=True):
            total += len(own.ids)
            if len(own.ids) <= max_length and total <= max(most, len(own.ids)):
                self.pairs.append(pair)
                self.tokens.append(own)
        if not self.pairs:
            raise DataError(f"no pair of the held-out ones has at most {max_length} tokens a side.")

    def measure(self, network: Network) -> Measured:
        """See Exam."""
        rank, world = self.processes.rank, self.processes.world
        mine, numbers = self.tokens[rank::world], range(rank, len(self.tokens), world)
        loss, count = self.processes.total(
            self.task.loss(network, mine, self.tokenizers.source.vocabulary.pad)
        )
        loss /= max(count, 1)
        texts = [""] * len(mine)
        for some in engine.by_length(mine):
            chosen = [mine[i] for i in some]
            places = [numbers[i] for i in some]  # what a draw for a text depends on
            how = self.task.how.search
            found = said_of(network, chosen, self.tokenizers, how, places)
            for i, own in zip(some, found, strict=True):
                texts[i] = self.tokenizers.text(own.words)
        said = gathered(texts, str, self.processes)
        scores = self.task.score(said, [pair.target or "" for pair in self.pairs])
        scores["perplexity"] = perplexity(loss)
        detail = self.task.detail(self.pairs, said)
        return {"": Scored(self.task.name, self.task.metric, self.task.how, scores, detail)}, [loss]
