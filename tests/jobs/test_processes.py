"""Every job on two processes: it takes the steps that one process takes, and none hangs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpora import chatter, corpus_of
from tests.shapes import bert_heads
from tests.train.conftest import metrics
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.model.config import ModelConfig
from unmask.model.factory import make_network
from unmask.model.shape import Shape

pytestmark = pytest.mark.slow

CLOSE, STEPS, WITHIN = 1e-4, 50, 60
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
COMMON = ["loop.precision=fp32", "evaluate.times=2", "optimizer.learning_rate=1e-3"]
TUNED = [*COMMON, "loop.batch_size=7"]
SHAPE = ["model.width=32", "model.layers=1", "model.heads=2", "model.inner_width=64"]
WORDS = "red green blue six seven is it the john paris lives in . who where".split()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> dict[str, list[object]]:
    """The command of each job, on data as small as it can be, from encoders without dropout."""
    place = tmp_path_factory.mktemp("jobs")
    corpus = corpus_of(place, chatter(80))
    for dropout in (0.0, 0.1):
        config = ModelConfig(
            vocab_size=len(corpus.tokenizer.vocabulary),
            width=32,
            layers=2,
            heads=2,
            inner_width=64,
            max_length=48,
            init_std=0.1,
            dropout=dropout,
            attention_dropout=dropout,
        )
        network = make_network(Shape.of(config, bert_heads()), 0)
        save_folder(place / f"encoder-{dropout}", network, corpus.tokenizer)
    texts = [" ".join(WORDS[(3 * i + j) % len(WORDS)] for j in range(4 + i % 5)) for i in range(40)]
    (place / "labels.tsv").write_text(
        "text\tlabel\n" + "".join(f"{text}\t{'ab'[i % 2]}\n" for i, text in enumerate(texts))
    )
    asked = [{"context": t, "qas": [_question(t, i)]} for i, t in enumerate(texts)]
    (place / "squad.json").write_text(
        json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": asked}]})
    )
    pairs = place / "pairs"
    pairs.mkdir()
    for name in ("train", "val"):
        (pairs / f"{name}.xx").write_text("".join(f"{text}\n" for text in texts))
        (pairs / f"{name}.yy").write_text("".join(f"{text[::-1]}\n" for text in texts))
    parts = [("sounds", "classify", "labels.tsv"), ("asked", "qa", "squad.json")]
    (place / "tasks.toml").write_text(
        "".join(
            f'[[tasks]]\nname = "{name}"\ntask = {{ name = "{task}" }}\n'
            f'train = "{place / file}"\ndev = "{place / file}"\n'
            for name, task, file in parts
        )
    )
    squad = ["--train", place / "squad.json", "--dev", place / "squad.json"]
    squad += ["--max-length", "48"]
    phases = "schedule.phases=[{length = 32, batch_tokens = 224}]"
    shape = [*SHAPE, "model.max_length=32", "model.size=tiny", phases, "data.held_out=10"]
    return {
        "pretrain": ["pretrain", corpus.path, *_set([*COMMON, *shape])],
        "finetune": ["finetune", "qa", place / "encoder-{dropout}", *squad, *_set(TUNED)],
        "multi": [
            *("finetune", "multi", place / "tasks.toml", place / "encoder-{dropout}"),
            *_set(TUNED),
        ],
        "translate": [
            *("translate", "train", pairs, "--from", "xx", "--to", "yy"),
            *_set([*TUNED, *SHAPE, "tokenizer.size=60", "task.search.max_length=8"]),
            *_set(["model.dropout={dropout}", "model.attention_dropout={dropout}"]),
        ],
    }


def _question(text: str, number: int) -> dict[str, object]:
    word = text.split()[number % 3]
    answer = {"text": word, "answer_start": text.index(word)}
    return {"id": str(number), "question": "who is it", "answers": [answer]}


def _set(changes: list[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def trained(
    command: list[object],
    out: Path,
    *flags: str,
    processes: int,
    dropout: float = 0.1,
    steps: int = STEPS,
    micro_batches: int = 1,
) -> str:
    """Train in a process group of its own; what it printed, if it has ended well and in time."""
    words = [str(word).replace("{dropout}", str(dropout)) for word in command]
    sizes = _set([f"schedule.steps={steps}", f"loop.micro_batches={micro_batches}"])
    verb = ["-m", "unmask", *words, *sizes, "--out", str(out), "--threads", "1", *flags]
    launch = TORCHRUN if processes > 1 else []
    process = subprocess.Popen(
        [sys.executable, *launch, *verb, "--no-preflight"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=4 * WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"still at work after {4 * WITHIN} s: {process.communicate()[0]}")
    assert process.returncode == 0, printed
    return printed


def losses(run: Path) -> list[float]:
    return [entry["loss"] for entry in metrics(run)]


@pytest.mark.parametrize("job", ["finetune", "multi", "translate"])
@pytest.mark.parametrize(("dropout", "micro_batches"), [(0.0, 1), (0.1, 2)])
def test_two_processes_take_the_steps_of_one(jobs, tmp_path, job, dropout, micro_batches):
    if job == "multi" and dropout == 0.0:
        pytest.skip("the head of a classifier has dropout of its own")
    given = {"dropout": dropout, "micro_batches": micro_batches}
    trained(jobs[job], tmp_path / "one", processes=1, **given)
    printed = trained(jobs[job], tmp_path / "two", processes=2, **given)
    assert ("micro_batches is raised from 1 to 2" in printed) == (micro_batches == 1)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == STEPS
    assert two == pytest.approx(one, rel=CLOSE)
    scores = [metrics(tmp_path / run, "eval")[-1] for run in ("one", "two")]
    assert scores[1]["loss"] == pytest.approx(scores[0]["loss"], rel=1e-3)


@pytest.mark.parametrize("job", ["finetune", "translate"])
def test_weights_may_be_sharded_in_every_job(jobs, tmp_path, job):
    given = {"steps": 10, "micro_batches": 2}
    trained(jobs[job], tmp_path / "copies", processes=2, **given)
    trained(jobs[job], tmp_path / "shares", "--shard", processes=2, **given)
    assert losses(tmp_path / "shares") == pytest.approx(losses(tmp_path / "copies"), rel=CLOSE)
    names = [
        load_folder(tmp_path / run / "model").network.state_dict() for run in ("copies", "shares")
    ]
    assert names[0].keys() == names[1].keys()


@pytest.mark.full
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("flags", [[], ["--shard"]], ids=["DDP", "shard"])
@pytest.mark.parametrize("job", ["pretrain", "finetune", "multi", "translate"])
def test_no_job_hangs_on_two_processes(jobs, tmp_path, job, flags, micro_batches):
    trained(jobs[job], tmp_path / "run", *flags, processes=2, steps=6, micro_batches=micro_batches)
    assert len(losses(tmp_path / "run")) == 6


@pytest.mark.full
@pytest.mark.parametrize("flags", [[], ["--shard"]], ids=["DDP", "shard"])
@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_a_compiled_network_takes_the_same_steps_on_two_processes(jobs, tmp_path, job, flags):
    given = {"steps": 4, "micro_batches": 3, "dropout": 0.0}
    off = ["model.dropout=0.0", "model.attention_dropout=0.0"] if job == "pretrain" else []
    trained(jobs[job], tmp_path / "plain", *_set(off), processes=1, **given)
    compiled = [*_set([*off, "loop.compile=true"]), *flags]
    trained(jobs[job], tmp_path / "compiled", *compiled, processes=2, **given)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=CLOSE)
