"""Held-out records that several processes answer together: the answers of one, in their order."""

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch

from tests.jobs.small import small_model
from unmask.evaluation.tasks import HeldOutRecords, Labelled, gathered
from unmask.infer.answering import answer_records
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.settings_read import FINETUNE
from unmask.model.factory import make_network
from unmask.model.shape import Shape
from unmask.system.distributed import Processes
from unmask.tasks.forward import LiveForward
from unmask.tasks.regress import Number
from unmask.text.tokens import Tokenizers
from unmask.train.compose import compose

COUNT = 7  # records: one process has more than the other
PATIENCE = 60  # seconds that a process waits for the other


class Side:
    """One of two processes, which are threads and exchange what they have in a list."""

    world, device = 2, torch.device("cpu")

    def __init__(self, rank: int, table: list[Any], both: Barrier) -> None:
        self.rank, self.table, self.both = rank, table, both

    def gather(self, payload: bytes) -> list[bytes]:
        assert isinstance(payload, bytes)
        return self._exchanged(payload)

    def total(self, values: Sequence[float]) -> list[float]:
        return [sum(parts) for parts in zip(*self._exchanged(list(values)), strict=True)]

    def _exchanged(self, own: Any) -> list[Any]:
        self.table[self.rank] = own
        self.both.wait()
        found = list(self.table)
        self.both.wait()
        return found


def together(work: Callable[[Side], Any]) -> list[Any]:
    """What each of two processes comes to."""
    table, both = [None, None], Barrier(2, timeout=PATIENCE)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, [Side(rank, table, both) for rank in range(2)]))


def table(label: Callable[[int], object], column: str = "label") -> tuple[str, str]:
    colours = "red", "green", "blue"
    rows = [f"it is {colours[i % 3]}{' the' * (i % 4)}\t{label(i)}\n" for i in range(COUNT)]
    return "data.tsv", f"text\t{column}\n" + "".join(rows)


def sentences() -> tuple[str, str]:
    tagged = ["john B-PER", "lives O", "in O", "paris B-LOC", ". O"]
    return "data.conll", "".join("\n".join(tagged[: 1 + i % 5]) + "\n\n" for i in range(COUNT))


def questions() -> tuple[str, str]:
    """Some have no answer, so that a threshold is settled from the answers."""
    lines = []
    for i in range(COUNT):
        context = "john lives in paris ." + " the red" * i
        span = {"text": ["paris"], "answer_start": [14]} if i % 3 else []
        lines.append({"id": f"q{i}", "question": "where", "context": context, "answers": span})
    return "data.jsonl", "".join(json.dumps(line) + "\n" for line in lines)


CASES = {
    "classify": ([], table(lambda i: ("six", "seven", "ångström")[i % 3])),
    "classify several": (
        ["task.multi_label=true"],
        table(lambda i: ("six", "six,seven", "seven,red")[i % 3]),
    ),
    "regress": ([], table(lambda i: i / 7, "score")),
    "ner": ([], sentences()),
    "qa": ([], questions()),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(params=CASES)
def case(request, model, tmp_path):
    """A task with its records, a network that answers it, and how texts become tokens."""
    changes, (name, content) = CASES[request.param]
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    task = compose(FINETUNE, request.param.split()[0], changes).task
    part = LabelledFiles(path, path).read(task)
    assert len(part.dev) == COUNT
    tokens = Tokenizers(model.tokenizer, 32)
    network = make_network(
        Shape.of(model.network.config, part.task.heads(model.network.config, tokens, {})),
        0,
        start=model.network,
    ).eval()
    return part, network, tokens


def alone(part: Labelled, network, tokens: Tokenizers) -> list[Any]:
    return [a for _, a in answer_records(LiveForward(network), tokens, part.task, part.dev)]


def test_answers_are_the_same_after_they_have_travelled(case):
    part = case[0]
    own = alone(*case)
    assert len(set(map(repr, own))) > 1, "all answers are alike"
    for found in together(lambda side: gathered(own[side.rank :: 2], part.task.answers, side)):
        assert found == own
        assert repr(found) == repr(own)  # no number has become another type


def test_numbers_travel_to_the_last_bit():
    numbers = [0.1 + 0.2, 1 / 3, 5e-324, 1.7e308, -0.0, math.inf, -math.inf, math.nan, 2.0]
    own = [Number(number) for number in numbers]
    for found in together(lambda side: gathered(own[side.rank :: 2], Number, side)):
        assert repr(found) == repr(own)


def test_texts_travel_as_they_are():
    own = ["", "Ångström", "我 爱 你", '"\\\n', "\U0001f600"]
    for found in together(lambda side: gathered(own[side.rank :: 2], str, side)):
        assert found == own


def test_a_process_may_have_no_record():
    for found in together(lambda side: gathered(["only"][side.rank :: 2], str, side)):
        assert found == ["only"]


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same settings; a threshold that was settled from answers may differ in its last bits."""
    pairs = (found.pop("threshold", 0.0), expected.pop("threshold", 0.0))
    assert pairs[0] == pytest.approx(pairs[1], rel=1e-4)
    assert found == expected


def test_two_processes_come_to_the_scores_of_one(case):
    part, network, tokens = case

    def measured(side):
        return HeldOutRecords({"": part}, tokens, side, 1000, {}).measure(
            network, part.task.objective
        )

    expected, (loss,) = measured(Processes())
    for found, (own,) in together(measured):
        assert found[""].scores == pytest.approx(expected[""].scores, rel=1e-4)
        assert found[""].detail.table == expected[""].detail.table
        assert found[""].detail.confusion == expected[""].detail.confusion
        assert_alike(found[""].settings.model_dump(), expected[""].settings.model_dump())
        assert own == pytest.approx(loss, rel=1e-4)
