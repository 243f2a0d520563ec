"""`python -m benchmarks NAME`: run one measurement."""

import sys

from benchmarks import budget, embed, finetune, growth, prepare, pretrain, processes, vocab
from benchmarks.faults import main as faults

BENCHMARKS = {
    "budget": budget.main,
    "embed": embed.main,
    "faults": faults.main,
    "finetune": finetune.main,
    "growth": growth.main,
    "prepare": prepare.main,
    "pretrain": pretrain.main,
    "processes": processes.main,
    "vocab": vocab.main,
}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""  # the rest is for the measurement
    if name not in BENCHMARKS:
        raise SystemExit(f"usage: python -m benchmarks {'|'.join(BENCHMARKS)}")
    BENCHMARKS[name]()


main()
