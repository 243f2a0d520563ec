"""A tiny corpus and recipe for fault tests, and training runs in forked processes."""

import hashlib
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.data.corpus.prepare import PrepareSettings, prepare
from unmask.jobs.pretrain import Pretrain
from unmask.system.console import Console
from unmask.system.errors import Stopped, UserError
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.compose import compose
from unmask.train.run import Run, RunOptions

WORDS = [a + b for a in "ba ce di fo gu ha ki lo mu ne".split() for b in "ra st tel mo n".split()]
STEPS = 24


@dataclass(frozen=True)
class World:
    """A folder, its corpus, and the digest of an undisturbed run."""

    path: Path
    corpus: Path
    reference: str  # digest of weights and optimizer


def recipe(**changes: Any) -> dict[str, Any]:
    """Return a recipe with some ten milliseconds per step, dropout, evaluations and many saves."""
    sizes = {"size": "tiny", "width": 32, "layers": 1, "heads": 2, "inner_width": 64}
    table: dict[str, Any] = {
        "seed": 1,
        "model": {**sizes, "max_length": 32},
        "data": {"held_out": 10},
        "optimizer": {"learning_rate": 1e-3},
        "schedule": {
            "steps": STEPS,
            "warmup": 0.1,
            "phases": [{"share": 1.0, "length": 32, "batch_tokens": 256}],
        },
        "loop": {"save_steps": 3, "micro_batch_tokens": 128},
        "evaluate": {"times": 2, "tokens": 256},
    }
    for name, value in changes.items():
        table[name] = {**table[name], **value} if isinstance(value, dict) else value
    return table


def make_world(path: Path) -> World:
    """Write a corpus and run once undisturbed, for the reference digest.

    The run also imports everything here, so that the forked processes need not.
    """
    torch.set_num_threads(1)
    path.mkdir(parents=True, exist_ok=True)
    text = path / "text.txt"
    dice = random.Random(0)
    documents = (
        "\n".join(" ".join(dice.choices(WORDS, k=dice.randint(4, 12))) + "." for _ in range(8))
        for _ in range(60)
    )
    text.write_text("\n\n".join(documents) + "\n")
    corpus = path / "corpus"
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, *WORDS, "."]))
    prepare([str(text)], tokenizer, corpus, PrepareSettings(), notice=quietly)
    run_here(corpus, path / "undisturbed")
    return World(path, corpus, digest_of(path / "undisturbed"))


def run_here(
    corpus: Path,
    out: Path,
    table: dict[str, Any] | None = None,
    *,
    console: Console | None = None,
    resume: bool = True,
) -> None:
    """Start or resume a run in this process."""
    chosen = compose(Pretrain.scope, table or recipe())
    Run(Pretrain(corpus), chosen, out, console, RunOptions(resume=resume)).go()


def digest_of(run: Path) -> str:
    """Return the SHA-256 of the final weights and the optimizer's tensors."""
    last = max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
    files = [run / "model" / "model.safetensors", last / "optimizer.safetensors"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def newest_step(run: Path) -> int:
    """Return the step of the newest checkpoint, -1 if there is none."""
    steps = [int(p.name[5:]) for p in (run / "checkpoints").glob("step-*")]
    return max(steps, default=-1)


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child, which needs no imports of its own; return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        work()
        code = 0
    except Stopped as stopped:
        code = stopped.exit_code
    except UserError as error:
        os.write(1, f"{error}\n".encode())  # callers redirect descriptor 1
        code = 2
    except KeyboardInterrupt:  # before the run could save anything
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)  # skips the exit handlers that came from the parent


def end_of(pid: int) -> int:
    """Wait for a child and return its exit code, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def quietly(line: str) -> None:
    """Ignore a line."""
