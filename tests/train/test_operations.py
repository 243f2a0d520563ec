"""How many ATen operations a training step and an embedded sentence take: as in operations.json.

Small operations cost time on a CPU even when they compute nothing, and no other test notices one
more of them. The counts may fall but not rise. A test also fails when a count has fallen, and asks
to record the lower number, so that it cannot rise again later:

    python -m tests.train.test_operations

Counts are of steady state (the second step or call), in fp32 and on one thread. They depend on the
minor version of torch; with another one than the record's, the tests are skipped.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import unmask
from tests.train.assembled import (
    finetuning,
    finetuning_several,
    pretraining,
    small_bert,
    translating,
)

RECORD = Path(__file__).with_name("operations.json")
TORCH = ".".join(torch.__version__.split(".")[:2])
SENTENCE = "john lives in paris ."


def embedding(place: Path) -> Callable[[], object]:
    """Embed one sentence with a small BERT."""
    model = unmask.load(small_bert(place / "bert"))
    return lambda: model.embed([SENTENCE])


# What is counted, ready to be run; a training step is forward, backward, clipping and optimizer.
CASES: dict[str, Callable[[Path], Callable[[], object]]] = {
    "bert": lambda place: pretraining("bert", place).step,
    "budget": lambda place: pretraining("budget", place).step,
    "budget with running average": lambda place: (
        pretraining("budget", place, "loop.weight_average=0.2").step
    ),
    "classify": lambda place: finetuning("classify", place).step,
    "ner": lambda place: finetuning("ner", place).step,
    "multi": lambda place: finetuning_several(place, term="number").step,
    "attention": lambda place: translating("attention", place).step,
    "transformer": lambda place: translating("transformer", place).step,
    "embed": embedding,
}


class Counting(TorchDispatchMode):
    """Count operations by name, those of a backward pass too, but not the profiler's marks."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        self.counts[str(func)] += func.namespace != "profiler"
        return func(*args, **(kwargs or {}))


def operations(run: Callable[[], object]) -> Counter[str]:
    """Count the operations of one call."""
    with Counting() as counting:
        run()
    return +counting.counts


def steady(run: Callable[[], object]) -> Counter[str]:
    """Count the second call: in the first an optimizer makes its tensors."""
    run()
    return operations(run)


def verdict(recorded: dict[str, int], counted: dict[str, int]) -> str | None:
    """Say what is wrong with a count; None if it is as recorded."""
    if recorded == counted:
        return None
    before, now = sum(recorded.values()), sum(counted.values())
    changes = {name: counted.get(name, 0) - recorded.get(name, 0) for name in {*recorded, *counted}}
    listed = [f"{change:+d} {name}" for name, change in sorted(changes.items()) if change]
    advice = "Remove the additional operations."
    if now < before:
        advice = "Record the lower count: python -m tests.train.test_operations"
    if now == before:
        advice = "If that is intended, record it: python -m tests.train.test_operations"
    return "\n".join([f"{before} operations were recorded, {now} are counted. {advice}", *listed])


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, int]]:
    record = json.loads(RECORD.read_text())
    if record["torch"] != TORCH:
        pytest.skip(f"recorded with torch {record['torch']}; this is {torch.__version__}")
    return record["operations"]


@pytest.mark.parametrize("case", CASES)
def test_it_takes_as_many_operations_as_recorded(case, recorded, tmp_path):
    wrong = verdict(recorded[case], steady(CASES[case](tmp_path)))
    assert wrong is None, f"{case}: {wrong}"


def test_the_record_has_the_cases_and_no_others(recorded):
    assert recorded.keys() == CASES.keys()


def test_every_step_takes_as_many_operations_as_the_one_before(tmp_path):
    step = CASES["bert"](tmp_path)
    step()
    assert operations(step) == operations(step)


def test_forward_backward_clipping_and_optimizer_are_counted(tmp_path):
    counts = steady(CASES["bert"](tmp_path))
    micro_batches, layers, norms = 2, 2, 6  # a norm of embeddings and head, and two in each layer
    assert counts["aten.native_layer_norm.default"] == micro_batches * norms
    assert counts["aten.native_layer_norm_backward.default"] == micro_batches * norms
    assert counts["aten._softmax_backward_data.default"] == micro_batches * layers
    assert counts["aten._foreach_norm.Scalar"] == 1
    assert counts["aten._fused_adamw_.default"] == 2  # groups: with weight decay and without


def test_the_operations_of_a_product_and_its_gradient_by_hand():
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4)
    counts = operations(lambda: (a @ b).sum().backward())
    assert counts["aten.mm.default"] == 2  # the product, and the gradient of its first factor
    assert counts["aten.sum.default"] == counts["aten.expand.default"] == 1


def test_a_count_that_rises_or_falls_is_wrong_and_names_the_operations():
    recorded = {"aten.mm.default": 3, "aten.add.Tensor": 1}
    assert verdict(recorded, dict(recorded)) is None
    risen = verdict(recorded, {"aten.mm.default": 5, "aten.add.Tensor": 1})
    assert risen is not None
    assert "4 operations were recorded, 6 are counted. Remove" in risen
    assert "+2 aten.mm.default" in risen
    fallen = verdict(recorded, {"aten.mm.default": 3})
    assert fallen is not None
    assert "Record the lower count" in fallen
    assert "-1 aten.add.Tensor" in fallen
    other = verdict(recorded, {"aten.mm.default": 3, "aten.sub.Tensor": 1})
    assert other is not None
    assert "If that is intended" in other


def record() -> None:
    """Write operations.json."""
    torch.set_num_threads(1)
    counts = {}
    for name, make in CASES.items():
        with TemporaryDirectory() as place:
            found = steady(make(Path(place) / "case"))
        counts[name] = dict(sorted(found.items()))
        print(f"{name}: {sum(found.values())} operations")
    record = {"torch": TORCH, "operations": counts}
    RECORD.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    record()
