"""Embedding speed on a CPU beside four other runtimes: batches, one sentence, lengths, threads.

    python -m benchmarks infer [--only batch one lengths] [--rounds 5] [--threads 2]

MiniLM, from text to vector. Every side runs in a process of its own and takes its turn in each
round. Preparation (graphs, calibration) is not timed. `peers.py` describes how each is used.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from benchmarks.embed import texts_of_known_length
from benchmarks.measure import RESULTS, Apart, interleaved, ratio, save
from unmask.checkpoint.fetch import get
from unmask.evaluation.report.charts import Chart, Line, stacked
from unmask.infer.compiled.compile import compile_model, records_for
from unmask.infer.model import Model

TEXTS, CALLS, SENTENCE = 1000, 20, 20  # texts; calls in a round, tokens of the one sentence
LENGTHS, THREADS = (8, 16, 32, 64, 128, 256, 512), (1, 2)
TOKENS = 4_096  # of all texts of one length
Embed = Callable[[Sequence[str]], np.ndarray]


def ours(place: Path, threads: int, *, compiled: str | None) -> Embed:
    """Load unmask's model, live or compiled; calibration texts differ from the measured ones."""
    torch.set_num_threads(threads)
    folder = get("minilm")
    if compiled:
        folder, live = place / f"unmask-{compiled}", Model.load(folder)
        if not folder.exists():
            compile_model(live, folder, records_for(live, None), int8=compiled == "int8")
    return Model.load(folder).embed


def theirs(place: Path, threads: int, *, name: str, int8: bool, apart: bool) -> Embed:
    """Load another runtime; calibration uses the same texts as unmask's."""
    if name == "OpenVINO":
        texts = json.loads((place / CALIBRATION).read_text()) if int8 else []
        return peers.openvino(get("minilm"), place, threads, texts, int8=int8, apart=apart)
    make = {"ONNX Runtime": peers.onnx_runtime, "CTranslate2": peers.ctranslate2}[name]
    return make(get("minilm"), place, threads, int8=int8, apart=apart)


def _sides() -> Iterator[tuple[str, Callable[[Path, int], Embed]]]:
    alone = peers.sentence_transformers
    yield "sentence-transformers fp32", lambda place, threads: alone(get("minilm"), threads)
    yield f"{OURS} fp32, not compiled", partial(ours, compiled=None)
    for precision in ("fp32", "int8"):
        int8 = precision == "int8"
        yield f"{OURS} {precision}", partial(ours, compiled=precision)
        for name in ("ONNX Runtime", "OpenVINO", "CTranslate2"):
            for apart in (False, True):
                make = partial(theirs, name=name, int8=int8, apart=apart)
                yield f"{name} {precision}{APART * apart}", make


OURS, CALIBRATION, APART = "unmask", "calibration.json", ", side by side"
SIDES = dict(_sides())


def prepare(place: Path) -> None:
    """Empty the folder of graphs, which may be of another version, and write calibration texts."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    texts = records_for(Model.load(get("minilm")), None)
    (place / CALIBRATION).write_text(json.dumps(texts))


class Side:
    """A runtime and several sets of texts; a call embeds a whole set, `calls` times."""

    def __init__(
        self, name: str, place: Path, threads: int, sets: list[list[str]], calls: int
    ) -> None:
        self.embed, self.sets, self.calls = SIDES[name](place, threads), sets, calls
        self.about = {"vectors": self.embed(sets[0])}

    def __call__(self, number: int) -> None:
        """Run one round with one of the sets."""
        for _ in range(self.calls):
            self.embed(self.sets[number])


def measured(
    names: Sequence[str], sets: list[list[str]], rounds: int, threads: int, calls: int = 1
) -> dict[str, Any]:
    """Return each side's seconds per call for each set, and its vectors of the first set."""
    place = RESULTS / "infer"
    sides = {name: Apart(Side, name, place, threads, sets, calls) for name in names}
    each = []
    for number in range(len(sets)):
        seconds = interleaved({n: partial(side, number) for n, side in sides.items()}, rounds)
        each.append({name: [spent / calls for spent in some] for name, some in seconds.items()})
    vectors = {name: side.about["vectors"] for name, side in sides.items()}
    for side in sides.values():
        side.close()
    return {"seconds": each, "vectors": vectors}


def best(names: Iterator[str], seconds: dict[str, list[float]]) -> str:
    """Return the fastest of some sides."""
    return min(names, key=lambda name: statistics.median(seconds[name]))


def batch(rounds: int, threads: int) -> dict[str, Any]:
    """Measure a batch of texts of mixed lengths."""
    model = Model.load(get("minilm"))
    texts = texts_of_known_length(model, TEXTS)
    tokens = sum(len(ids) + 2 for ids in model.tokenizer.ids(texts))
    found = measured(list(SIDES), [texts], rounds, threads)
    vectors, (seconds,) = found.pop("vectors"), found.pop("seconds")
    truth = vectors["sentence-transformers fp32"]
    print(f"\n{TEXTS:,} texts, {tokens:,} tokens, {threads} threads\n")
    print("| | tokens a second | cosine to fp32, mean and least |\n|---|---|---|")
    for name, spent in seconds.items():
        cosines = (vectors[name] * truth).sum(axis=1)
        found.setdefault("cosine", {})[name] = [float(cosines.mean()), float(cosines.min())]
        print(
            f"| {name} | {tokens / statistics.median(spent):,.0f} | {cosines.mean():.4f}, "
            f"{cosines.min():.4f} |"
        )
    return {**found, "seconds": seconds, "tokens": tokens, "speedup": _speedups(seconds)}


def _speedups(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Compare unmask with the fastest other runtime, in each precision."""
    found = {}
    for precision in ("fp32", "int8"):
        mine = f"{OURS} {precision}"
        others = (name for name in seconds if precision in name and OURS not in name)
        fastest = best(others, seconds)
        found[precision] = {"beside": fastest, **ratio(seconds, mine, fastest)}
        at = found[precision]
        print(
            f"{mine}: {at['median']:.2f}x ({at['lowest']:.2f} to {at['highest']:.2f}) of {fastest}"
        )
    return found


def one(rounds: int, threads: int) -> dict[str, Any]:
    """Measure single calls with one sentence."""
    model = Model.load(get("minilm"))
    texts = texts_of_known_length(model, TEXTS)
    (text, *_) = [t for t in texts if len(model.tokenizer.ids([t])[0]) == SENTENCE - 2]
    found = measured(
        [name for name in SIDES if APART not in name], [[text]], rounds, threads, CALLS
    )
    (seconds,) = found["seconds"]
    print(f"\na sentence of {SENTENCE} tokens, {threads} threads\n\n| | ms |\n|---|---|")
    for name, spent in seconds.items():
        print(f"| {name} | {1e3 * statistics.median(spent):.2f} |")
    return {"seconds": seconds, "speedup": _speedups(seconds)}


def lengths(rounds: int, threads: int) -> dict[str, Any]:
    """Measure batches of texts of equal length, for several lengths, on one core and on two."""
    model = Model.load(get("minilm"))
    names = list(SIDES)
    rates: dict[str, Any] = {}
    sets = [_of_length(model, length) for length in LENGTHS]
    for cores in THREADS:
        found = measured(names, sets, rounds, cores)["seconds"]
        for length, texts, seconds in zip(LENGTHS, sets, found, strict=True):
            for name, spent in seconds.items():
                rate = len(texts) * length / statistics.median(spent)
                rates.setdefault(name, {}).setdefault(cores, []).append(rate)
    (RESULTS / "infer.svg").write_text(drawn(rates))
    return {"lengths": list(LENGTHS), "tokens_a_second": rates}


def drawn(rates: dict[str, Any]) -> str:
    """Draw the speed over the length, for each precision and number of threads."""
    charts = [
        Chart(
            f"Tokens a second, {precision}, {cores} threads",
            [
                Line(_short(name), range(len(LENGTHS)), _better(rates, name, cores))
                for name in rates
                if precision in name and APART not in name
            ],
            across="tokens of a text",
            names=[str(length) for length in LENGTHS],
        )
        for precision in ("fp32", "int8")
        for cores in THREADS
    ]
    return stacked(charts)


def _short(name: str) -> str:
    """Shorten a name to fit beside its line; the title has the precision."""
    for long, short in ((" fp32", ""), (" int8", ""), ("not compiled", "live"), ("formers", ".")):
        name = name.replace(long, short)
    return name


def _better(rates: dict[str, Any], name: str, cores: int) -> list[float]:
    """Return the faster of the two ways to use a runtime, at each length."""
    ways = [rates[way][cores] for way in (name, name + APART) if way in rates]
    return [max(some) for some in zip(*ways, strict=True)]


def _of_length(model: Model, length: int) -> list[str]:
    """Cut stretches of `length` tokens from a text, TOKENS tokens in all."""
    from pydoc_data.topics import topics

    prose = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    (pieces,) = model.tokenizer.tokenize([prose])
    inside = length - 2
    starts = range(0, len(pieces.ids) - inside, inside)[: TOKENS // length]
    return [prose[pieces.offsets[a][0] : pieces.offsets[a + inside - 1][1]] for a in starts]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks infer")
    kinds = {"batch": batch, "one": one, "lengths": lengths}
    parser.add_argument("--only", nargs="*", choices=kinds, default=list(kinds))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args(sys.argv[2:])
    prepare(RESULTS / "infer")
    for name in arguments.only:
        save(f"infer-{name}", kinds[name](arguments.rounds, arguments.threads))
