"""Network and held-out records -> scores of tasks; each process answers a share of the records.

Records are never split between processes, so every answer is what a single process would give.
Answers travel between processes as JSON.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from math import fsum
from typing import Any

from pydantic import TypeAdapter

from unmask.evaluation.report.answers import TaskScores
from unmask.infer.answering import answer_records
from unmask.model.factory import part_of
from unmask.model.network import Network
from unmask.objectives.base import Companions, Objective
from unmask.system.distributed import Processes
from unmask.system.errors import DataError
from unmask.tasks.base import Task, all_scores
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import LiveForward
from unmask.tasks.results import AnswerCounts
from unmask.text.tokens import Tokenizers

Measured = tuple[dict[str, TaskScores], list[float]]


@dataclass(frozen=True)
class Labelled:
    """A task with its training and held-out records."""

    task: Task[Any, Any]
    train: Sequence[Any]
    dev: Sequence[Any]
    notes: Sequence[str] = ()  # what was inferred about the files, to be logged
    split: Mapping[str, Any] | None = None  # how `dev` was split off, if it was not given


class HeldOutRecords:
    """Scores networks on the held-out records of one or several tasks, by the tasks' metrics."""

    def __init__(
        self,
        parts: Mapping[str, Labelled],
        tokens: Tokenizers,
        processes: Processes,
        most: int,
        companions: Companions,
    ) -> None:
        """`most` limits the tokens of records whose answers are generated, which is slow."""
        self.parts, self.tokens, self.processes = parts, tokens, processes
        self.companions = companions
        self.records = {name: chosen(part, tokens, most) for name, part in parts.items()}

    def measure(self, network: Network, objective: Objective | None) -> Measured:
        """Score the network on every task; see `TaskScorer`."""
        measured, losses = {}, []
        for name, part in self.parts.items():
            part_network = part_of(network, [name]) if name else network
            criterion = Criterion(part_network, objective, self.companions) if objective else None
            measured[name], loss = self._scored(part, self.records[name], part_network, criterion)
            losses.append(loss)
        return measured, losses

    def _scored(
        self, part: Labelled, records: Sequence[Any], network: Network, criterion: Criterion | None
    ) -> tuple[TaskScores, float]:
        counts, rank, world = AnswerCounts(), self.processes.rank, self.processes.world
        own_answers = answer_records(
            LiveForward(network),
            self.tokens,
            part.task,
            records[rank::world],
            known=criterion,
            tally=counts,
            numbers=count(rank, world),  # the numbers that one process would count
        )
        answers = gathered([answer for _, answer in own_answers], part.task.answers, self.processes)
        total, label_count = self.processes.total([fsum(counts.losses), float(sum(counts.counts))])
        # Thresholds and the like are fitted here, so scores are those of the best choice.
        task, settled_answers = part.task.choose_thresholds(records, answers)
        loss = total / max(label_count, 1)
        scores, detail = (
            all_scores(task, records, settled_answers, loss),
            task.detail(records, settled_answers),
        )
        return TaskScores(task.name, task.metric, task.config, scores, detail), loss


def chosen(part: Labelled, tokens: Tokenizers, most: int) -> Sequence[Any]:
    """Select the held-out records to answer: all, or the first ones if answers are generated."""
    if not part.task.generates:
        return part.dev
    records, total_tokens = [], 0
    for record, windows in part.task.windows(part.dev, tokens, learn=True):
        record_tokens = sum(len(window.ids) for window in windows)
        total_tokens += record_tokens
        # At least the first record counts, however long it is.
        if windows and total_tokens <= max(most, record_tokens):
            records.append(record)
    if not records:
        raise DataError(f"no held-out example has at most {tokens.max_length} tokens.")
    return records


def gathered(own_answers: Sequence[Any], answer_class: type, processes: Processes) -> list[Any]:
    """Gather the answers of all processes, which have every n-th record each, in record order."""
    if processes.world == 1:
        return list(own_answers)
    adapter: TypeAdapter[object] = TypeAdapter(answer_class)
    shares = [
        [adapter.validate_python(answer) for answer in json.loads(payload)]
        for payload in processes.gather(
            json.dumps(list(own_answers), default=asdict).encode("utf-8")
        )
    ]
    answers: list[object] = [None] * sum(map(len, shares))
    for rank, share in enumerate(shares):
        answers[rank :: processes.world] = share
    return answers
