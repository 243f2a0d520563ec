"""Cost of a pre-training step by sequence length, batch size and model size, beside transformers.

    python -m benchmarks growth

Writes tokens per second over three axes, and peak memory over one, to results/growth.json and
results/growth.svg.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from benchmarks.measure import RESULTS, save
from benchmarks.pretrain import THREADS, Case, measure
from unmask.evaluation.report.charts import Chart, Line, stacked
from unmask.model.config import SIZES

PIECES, SIDES = 30_522, ("unmask", "transformers")
LENGTHS = (64, 128, 256, 512)
EXAMPLES = (4, 8, 16, 32, 64, 128)  # of 128 tokens in a step
UP_TO_BASE = ("tiny", "mini", "small", "medium", "base")


def case(size: str, length: int, examples: int) -> Case:
    """Return a case of a named size, in which almost all sequences have full length."""
    layers, width = SIZES[size]
    name = f"{size}, {examples} examples of {length} tokens"
    return Case(name, layers, width, width // 64, PIECES, examples, length=length)


def of_length(length: int) -> Case:
    """Return a case with sequences of this length, 4,096 tokens per step."""
    return case("mini", length, 4096 // length)


def of_examples(count: int) -> Case:
    """Return a case with this many sequences per step."""
    return case("mini", 128, count)


def of_size(name: str) -> Case:
    """Return a case with a network of this size."""
    return case(name, 128, 16)


@dataclass(frozen=True)
class Axis:
    """A quantity that is varied, and the case for each of its values."""

    name: str
    about: str
    values: Sequence[Any]
    case_of: Callable[[Any], Case]


AXES = [
    Axis("length of a row", "mini, 4,096 tokens a step", LENGTHS, of_length),
    Axis("examples of a step", "mini, rows of 128 tokens", EXAMPLES, of_examples),
    Axis("size", "rows of 128 tokens, 2,048 a step", UP_TO_BASE, of_size),
]


def picture(axis: Axis, found: dict[str, Any], key: str, what: str, unit: float = 1.0) -> Chart:
    """Draw one measured quantity of both sides along an axis."""
    at = range(len(found))
    values = {side: [result[key][side] / unit for result in found.values()] for side in SIDES}
    lines = [Line(side, at, values[side]) for side in SIDES]
    title = f"{what} ({axis.about})"
    return Chart(title, lines, across=axis.name, names=list(found), log=True)


def main(rounds: int = 3) -> None:
    torch.set_num_threads(THREADS)
    measured = cache(lambda chosen: measure(chosen, rounds))  # some cases lie on two axes
    results = {a.name: {str(v): measured(a.case_of(v)) for v in a.values} for a in AXES}
    charts = [picture(a, results[a.name], "tokens_a_second", "Tokens a second") for a in AXES]
    last = AXES[-1]
    charts.append(picture(last, results[last.name], "peak_bytes", "Peak memory, MB", 1e6))
    for axis_name, rows in results.items():
        print(f"\n| {axis_name} | transformers | unmask | ratio | of the peak | MB, both |")
        print("|---|---|---|---|---|---|")
        for value, result in rows.items():
            rate, memory = result["tokens_a_second"], result["peak_bytes"]
            print(
                f"| {value} | {rate['transformers']:,.0f} | {rate['unmask']:,.0f} | "
                f"{result['speedup']['median']:.2f}x | {result['share_of_peak']:.0%} | "
                f"{memory['transformers'] / 1e6:,.0f} and {memory['unmask'] / 1e6:,.0f} |"
            )
    save("growth", {"threads": THREADS, "axes": results})
    (RESULTS / "growth.svg").write_text(stacked(charts))
