"""Results: short in a session, plain in JSON."""

import json
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import unmask
from unmask.tasks.results import Result


class Drawn(BaseModel):
    kind: str = "text"


@dataclass(frozen=True, repr=False)
class Inner(Result):
    share: float


@dataclass
class Other:
    name: str


@dataclass(frozen=True, repr=False)
class Outer(Result):
    values: Any


def test_everything_in_a_result_becomes_json():
    array = np.array([[0.5, 1.0]], np.float32)
    values = (Inner(0.25), Other("a"), array, np.int64(3), Path("a/b"), Drawn(), {1: (2,)}, None)
    table = Outer(values).to_dict()
    expected = [{"share": 0.25}, {"name": "a"}, [[0.5, 1.0]], 3, str(Path("a/b"))]
    assert table == {"values": [*expected, {"kind": "text"}, {"1": [2]}, None]}
    assert json.loads(json.dumps(table)) == table


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.123456, "0.1235"),
        ([1, 2, 3, 4, 5, 6], "[1, 2, 3, 4, 5, 6]"),
        (list(range(1000)), "[0, 1, 2, ... 1,000 items]"),
        (tuple(range(7)), "(0, 1, 2, ... 7 items)"),
        (("a",), "('a',)"),
        ({i: 0.5 for i in range(7)}, "{0: 0.5, 1: 0.5, 2: 0.5, ... 7 items}"),
        (np.zeros((2, 3), np.float32), "<2x3 float32>"),
        ("a" * 61, f"'{'a' * 57}...'"),
        ([Inner(1 / 3)], "[Inner(share=0.3333)]"),
        (None, "None"),
    ],
)
def test_a_repr_is_short(value, shown):
    assert repr(Outer(value)) == f"Outer(values={shown})"


RESULTS = [
    thing
    for name in unmask.__all__
    if isinstance(thing := getattr(unmask, name), type) and issubclass(thing, Result)
]


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_results_of_the_api_are_frozen_and_short(kind):
    result = object.__new__(kind)
    for field in fields(kind):
        object.__setattr__(result, field.name, list(range(10_000)))
    assert len(repr(result)) < 120 + 60 * len(fields(kind))
    with pytest.raises(FrozenInstanceError):
        setattr(result, fields(kind)[0].name, 1)


def test_there_are_results_to_look_at():
    assert {unmask.Labels, unmask.QaAnswer, unmask.AttentionMaps} <= {*RESULTS}
