"""Fine-tuning against transformers: after steps on the same windows, the same weights.

Ours reads packed rows, in two pieces a step; theirs pads each batch to its longest window. Their
loss of question answering takes padding for possible answers; here it does not.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import theirs, tuned
from tests.conftest import tiny_config, tiny_network
from tests.stepping import take_step
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.settings_read import FINETUNE
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.compose import compose
from unmask.train.optim.optimizers import make_optimizer
from unmask.train.optim.schedules import OptimizerSettings
from unmask.train.steps.base import MicroBatch, TrainingModule

pytest.importorskip("transformers")

BATCH, STEPS, LENGTH = 8, 3, 64
RULES = OptimizerSettings(learning_rate=1e-3, weight_decay=0.1)
WORDS = [f"w{i}" for i in range(30)]


def text(number: int, words: int) -> str:
    return " ".join(WORDS[(7 * number + 3 * i) % len(WORDS)] for i in range(words))


def table(label) -> tuple[str, str]:
    rows = [f"{text(i, 1 + 5 * i % 13)}\t{text(i + 1, 1 + i % 5)}\t{label(i)}" for i in range(24)]
    return "data.tsv", "\n".join(["text\tsecond\tlabel", *rows])


def names() -> tuple[str, str]:
    tags = ["O", "B-PER", "I-PER", "O", "B-LOC"]
    sentences = [
        "\n".join(f"{word} {tags[i % 5]}" for i, word in enumerate(text(n, 1 + 5 * n % 13).split()))
        for n in range(24)
    ]
    return "data.conll", "\n\n".join(sentences)


def questions() -> tuple[str, str]:
    def paragraph(n: int) -> dict:
        passage = text(n, 5 + 7 * n % 24)
        answer = passage.split()[n % 5]
        span = {"text": answer, "answer_start": passage.index(answer)}
        return {"context": passage, "qas": [{"id": f"q{n}", "question": "w1", "answers": [span]}]}

    data = [{"title": "all", "paragraphs": [paragraph(n) for n in range(24)]}]
    return "data.json", json.dumps({"version": "1.1", "data": data})


FILES = {
    "classify": table(lambda i: ["bad", "good", "so-so"][i % 3]),
    "regress": table(lambda i: i % 6),
    "ner": names(),
    "qa": questions(),
}


@pytest.fixture(params=FILES)
def data(request, tmp_path):
    name, content = FILES[request.param]
    path = tmp_path / name
    path.write_text(content + "\n")
    task = compose(FINETUNE, request.param).task
    return LabelledFiles(path, path).read(task)


class WithoutPadding(nn.Module):
    """Their answerer, to which padding is no answer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, start_positions, end_positions, **rows):
        said, padding = self.model(**rows), rows["attention_mask"] == 0
        ends = (said.start_logits, start_positions), (said.end_logits, end_positions)
        losses = [F.cross_entropy(s.masked_fill(padding, -torch.inf), at) for s, at in ends]
        return SimpleNamespace(loss=sum(losses) / 2)


def test_steps_of_fine_tuning_lead_to_the_weights_of_transformers(data, tmp_path):
    task, tokenizer = data.task, Tokenizer(Vocabulary([*SPECIALS, *WORDS]))
    sizes = {"vocab_size": len(tokenizer.vocabulary), "max_length": LENGTH, "width": 32}
    tokens = Tokenizers(tokenizer, LENGTH)
    heads = task.heads(tiny_config(**sizes), tokens, {})
    heads["labels"] = task.head.model_copy(update={"dropout": 0.0})
    ours = tiny_network(heads, **sizes, dropout=0.0, attention_dropout=0.0)
    save_folder(tmp_path / "ours", ours, tokenizer)
    other = tuned.network(task, tmp_path / "ours", 0).train()
    wrapped = WithoutPadding(other) if task.name == "qa" else other
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    module = TrainingModule(ours.train(), task.objective)
    optimizer, their_optimizer = make_optimizer(module, RULES), theirs.adamw(other, RULES)

    found = task.windows(data.train, tokens, learn=True)
    windows = [window.compact() for _, own in found for window in own]
    shared = 0
    for step in range(STEPS):
        some = windows[step * BATCH : (step + 1) * BATCH]
        parts = some[:2], some[2:]  # which changes nothing
        batches = [task.batch(part, tokens) for part in parts]
        shared += sum(len(batch.row) > len(batch.tokens) for batch in batches)
        pieces = [MicroBatch(batch, 0) for batch in batches]
        result = take_step(module, pieces, optimizer, clip=RULES.max_grad_norm)
        assert result.norm > RULES.max_grad_norm, (
            "the gradient was not clipped, so that is not compared"
        )
        theirs.step(wrapped, their_optimizer, [tuned.rows_of(task, some)], RULES.max_grad_norm)
    assert shared, "no row held several windows"

    other.save_pretrained(tmp_path / "theirs")
    back = load_folder(tmp_path / "theirs").network.state_dict()
    moved = 0.0
    for name, tensor in ours.state_dict().items():
        # What has no gradient, as the bias of keys, has one of rounding, and AdamW takes a step.
        torch.testing.assert_close(
            tensor, back[name], atol=RULES.learning_rate / 20, rtol=0, msg=name
        )
        moved = max(moved, (tensor - before[name]).abs().max().item())
    assert moved > RULES.learning_rate
