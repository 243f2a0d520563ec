"""Speed of a pre-training step: unmask on packed rows, transformers on padded ones.

Both sides train on the same examples with the same tokens masked, with dropout 0.1, fp32, gradient
clipping and fused AdamW. Speed is in real tokens per second, without padding. A third side, a plain
matrix product, shows what the machine can do in the same rounds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import theirs
from benchmarks.measure import Apart, gflops, interleaved, matrix_products, ratio, save
from tests.shapes import bert_heads
from tests.stepping import take_step
from unmask.data.batch import Batch, collate
from unmask.data.corpus.stream import CorpusExample
from unmask.data.packing import pack
from unmask.model.config import ModelConfig
from unmask.model.kernels.malloc import keep_freed_memory
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.objectives.base import JointObjective
from unmask.objectives.mlm import MaskedLM, MaskSettings
from unmask.objectives.pairs import PairOrder, PairSettings
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.optim.optimizers import make_optimizer
from unmask.train.optim.schedules import OptimizerSettings
from unmask.train.steps.base import MicroBatch, TrainingModule

THREADS, MICRO_TOKENS = 2, 2048
RULES = OptimizerSettings(learning_rate=1e-4)


@dataclass(frozen=True)
class Case:
    """A network, the lengths of the examples it is trained on, and the speed-up to reach."""

    name: str
    layers: int
    width: int
    heads: int
    vocab_size: int
    examples: int  # per step
    steps: int = 1  # per round
    length: int = 128  # of a row
    shortest: int = 0  # 0: nine of ten examples fill the row, as in the paper
    longest: int = 0  # 0: as long as the row
    trim: bool = True  # transformers pads to the longest of a batch; otherwise to `length`
    asked: float = 1.0  # speed-up over transformers that is to be reached

    @property
    def config(self) -> ModelConfig:
        """Return BERT's configuration in this size."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            inner_width=4 * self.width,
        )


CASES = [
    Case("mini, 30,522 pieces", 4, 256, 4, 30_522, examples=64, asked=3.0),
    Case("mini, 8,192 pieces", 4, 256, 4, 8192, examples=64, steps=2, asked=2.0),
    Case("MiniLM's size, 30,522 pieces", 6, 384, 12, 30_522, examples=32, asked=2.0),
    Case("base, 30,522 pieces", 12, 768, 12, 30_522, examples=16, asked=1.4),
    Case(
        "mini, 30,522 pieces, one short pair a row", 4, 256, 4, 30_522, examples=64,
        shortest=10, longest=80, trim=False, asked=6.0,
    ),
    Case(
        "the same, theirs padded to the longest of a batch", 4, 256, 4, 30_522, examples=64,
        shortest=10, longest=80, asked=6.0,
    ),
]  # fmt: skip


def examples_of(case: Case, seed: int = 0) -> list[CorpusExample]:
    """Make pairs of random tokens: [CLS] first [SEP] second [SEP]."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(case.examples):
        longest = case.longest or case.length
        short = case.shortest or (5 if rng.random() < 0.1 else longest)
        length = int(rng.integers(short, longest + 1))
        ids = rng.integers(len(SPECIALS), case.vocab_size, length)
        middle = length // 2
        ids[[0, middle, -1]] = SPECIALS.index("[CLS]"), *[SPECIALS.index("[SEP]")] * 2
        segments = (np.arange(length) > middle).astype(np.int64)
        found.append(CorpusExample(ids, segments, continues=np.zeros(length, dtype=bool)))
    return found


class Ours:
    """Training steps of unmask on packed rows."""

    def __init__(self, case: Case) -> None:
        words = [f"word{i}" for i in range(case.vocab_size - len(SPECIALS))]
        vocabulary = Vocabulary([*SPECIALS, *words])
        objective = JointObjective(
            [MaskedLM(MaskSettings(), vocabulary), PairOrder(PairSettings(), vocabulary)]
        )
        torch.manual_seed(0)
        self.network = Network(Shape.of(case.config, bert_heads(tokens=True, pair=True))).train()
        self.module = TrainingModule(self.network, objective)
        self.optimizer = make_optimizer(self.module, RULES)
        self.pieces = [
            MicroBatch(objective.prepare(batch, 0, 0.0), seed)
            for seed, batch in enumerate(_batches(examples_of(case), case.length, vocabulary))
        ]
        self.tokens = sum(piece.batch.real for piece in self.pieces)

    def step(self) -> None:
        """Train on all examples once."""
        take_step(self.module, self.pieces, self.optimizer, clip=RULES.max_grad_norm)

    def flops(self) -> float:
        """Count the floating-point operations of a step's matrix products, forward and back."""
        config = self.network.config
        square = config.width**2
        head = square + config.width * config.vocab_size
        total = 0.0
        for piece in self.pieces:
            rows, length = piece.batch.tokens.shape
            first = 3 * square + 2 * config.width * length  # q, k, v; scores and weighted sums
            rest = square + 2 * config.width * config.inner_width
            # The last block computes its output only for the tokens that heads read.
            total += rows * length * (config.layers * first + (config.layers - 1) * rest)
            read = piece.batch.counts["mlm"]  # masked tokens; [CLS] is added below
            total += (read + len(piece.batch.row)) * rest + read * head
        return 6 * total  # two per weight and token, and twice as many in the backward pass


def _batches(examples: list[CorpusExample], length: int, vocabulary: Vocabulary) -> list[Batch]:
    rows = pack([len(example.ids) for example in examples], length)
    size = MICRO_TOKENS // length
    found = []
    for begin in range(0, len(rows), size):
        chosen = rows[begin : begin + size]
        members = [i for row in chosen for i in row]
        at = iter(range(len(members)))
        laid = [[next(at) for _ in row] for row in chosen]
        batch = collate([examples[i] for i in members], laid, pad_id=vocabulary.pad)
        found.append(
            batch.with_examples(
                number=torch.tensor(members) * 2**20,
                pair=torch.tensor(members) % 2,
                continues=torch.zeros_like(batch.tokens, dtype=torch.bool),
            )
        )
    return found


class Steps:
    """One side of a case; runs in a process of its own."""

    def __init__(self, case: Case, side: str) -> None:
        torch.set_num_threads(THREADS)
        ours = Ours(case)
        self.count = case.steps
        self.about = {"tokens": ours.tokens, "flops": ours.flops()}
        if side == "unmask":
            keep_freed_memory()
            self.step = ours.step
        else:
            batches = [piece.batch for piece in ours.pieces]
            size = MICRO_TOKENS // case.length
            rows = theirs.PaddedRows(
                case.config, batches, case.length, RULES, micro_rows=size, trim=case.trim
            )
            self.step = rows.step

    def __call__(self) -> None:
        """Train for the steps of one round."""
        for _ in range(self.count):
            self.step()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Measure both sides of a case, in turn."""
    print(f"\n{case.name}", flush=True)
    sides = {name: Apart(Steps, case, name) for name in ("unmask", "transformers")}
    about = sides["unmask"].about
    seconds = interleaved({**sides, "matrix products": matrix_products}, rounds)
    memory = {name: side.close() for name, side in sides.items()}
    peak = gflops(seconds.pop("matrix products"))
    middle = {name: float(np.median(spent)) for name, spent in seconds.items()}
    reached = case.steps * about["flops"] / middle["unmask"] / 1e9
    return {
        "case": case.name,
        "asked": case.asked,
        "tokens_a_step": about["tokens"],
        "tokens_a_second": {n: case.steps * about["tokens"] / s for n, s in middle.items()},
        "speedup": ratio(seconds, "unmask", "transformers"),
        "gflops": reached,
        "peak_gflops": peak,
        "share_of_peak": reached / peak,
        "peak_bytes": memory,
        "seconds": seconds,
    }


def main(rounds: int = 5) -> None:
    torch.set_num_threads(THREADS)
    results = [measure(case, rounds) for case in CASES]
    print(
        "\n| | transformers, tokens a second | unmask | ratio (rounds) | asked | of the peak | MB |"
    )
    print("|---|---|---|---|---|---|---|")
    for result in results:
        rate, speedup = result["tokens_a_second"], result["speedup"]
        memory = " and ".join(f"{size / 1e6:,.0f}" for size in result["peak_bytes"].values())
        print(
            f"| {result['case']} | {rate['transformers']:,.0f} | {rate['unmask']:,.0f} | "
            f"{speedup['median']:.2f}x ({speedup['lowest']:.2f} to {speedup['highest']:.2f}) | "
            f"{result['asked']:.1f}x | {result['share_of_peak']:.0%} | {memory} |"
        )
    save("pretrain", {"threads": THREADS, "cases": results})
