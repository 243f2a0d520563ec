"""`python -m benchmarks NAME`: run one measurement, or `all` of those that need no data."""

import sys

from benchmarks import (
    against,
    budget,
    codelines,
    embed,
    finetune,
    growth,
    infer,
    int8,
    load,
    million,
    mutants,
    predict,
    prepare,
    pretrain,
    processes,
    same,
    story,
    translate,
    vocab,
)
from benchmarks.faults import main as faults

BY_NAME = {
    "against": against.main,
    "budget": budget.main,
    "codelines": codelines.main,
    "finetune": finetune.main,
    "int8": int8.main,
    "load": load.main,
    "million": million.main,
    "mutants": mutants.main,
    "predict": predict.main,
    "prepare": prepare.main,
    "processes": processes.main,
    "same": same.main,
    "story": story.main,
    "translate": translate.main,
    "vocab": vocab.main,
}
# Measurements that make their own data; `all` runs these.
ALONE = {
    "embed": embed.main,
    "faults": faults.main,
    "growth": growth.main,
    "infer": infer.main,
    "pretrain": pretrain.main,
}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""  # the other arguments belong to the measurement
    known = {**BY_NAME, **ALONE}
    if name not in (*known, "all"):
        raise SystemExit(f"usage: python -m benchmarks {'|'.join([*known, 'all'])}")
    for run in ALONE.values() if name == "all" else [known[name]]:
        run()


main()
