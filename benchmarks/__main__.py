"""`python -m benchmarks NAME`: run one measurement, or `all` of them, one after the other."""

import sys

from benchmarks import budget, embed, growth, prepare, pretrain, processes, vocab
from benchmarks.faults import main as faults

BENCHMARKS = {
    "budget": budget.main,
    "embed": embed.main,
    "faults": faults.main,
    "growth": growth.main,
    "prepare": prepare.main,
    "pretrain": pretrain.main,
    "processes": processes.main,
    "vocab": vocab.main,
}


def main() -> None:
    names = sys.argv[1:2] or ["help"]  # the rest is for the measurement
    chosen = list(BENCHMARKS) if names == ["all"] else names
    if not set(chosen) <= set(BENCHMARKS):
        raise SystemExit(f"usage: python -m benchmarks {'|'.join([*BENCHMARKS, 'all'])}")
    for name in chosen:
        BENCHMARKS[name]()


main()
