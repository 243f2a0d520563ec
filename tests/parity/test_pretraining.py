"""Pre-training against transformers: the same losses and, after steps of AdamW, the same weights.

Ours reads packed rows; theirs reads every example in a row of its own, with padding.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks.theirs import adamw, apart
from tests.conftest import tiny_network
from tests.corpora import chatter, corpus_of
from tests.shapes import bert_heads
from tests.stepping import take_step
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.data.batch import Batch
from unmask.data.corpus.config import ExampleSettings
from unmask.data.corpus.examples import NO_PAIR
from unmask.data.corpus.stream import Cursor, Stream
from unmask.objectives.base import JointObjective
from unmask.objectives.mlm import MaskedLM, MaskSettings
from unmask.objectives.pairs import PairOrder, PairSettings
from unmask.train.optim.optimizers import make_optimizer
from unmask.train.optim.schedules import OptimizerSettings
from unmask.train.steps.base import MicroBatch, TrainingModule

transformers = pytest.importorskip("transformers")

LENGTH, ROWS, STEPS = 64, 8, 3
RULES = OptimizerSettings(learning_rate=1e-4, weight_decay=0.1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_of(tmp_path_factory.mktemp("parity"), [*chatter(40), ["w0 w1 w2"]])


@pytest.fixture(scope="module")
def objective(corpus):
    vocabulary = corpus.tokenizer.vocabulary
    mlm = MaskedLM(MaskSettings(), vocabulary)
    return JointObjective([mlm, PairOrder(PairSettings(), vocabulary)])


@pytest.fixture(scope="module")
def batches(corpus, objective) -> list[Batch]:
    """The batches of a few steps, as a run would read them."""
    stream = Stream(corpus, np.arange(41), ExampleSettings(), 0, LENGTH)
    found = [
        objective.prepare(stream.batch([Cursor(0, ROWS * i + j) for j in range(ROWS)]), 1, 0.0)
        for i in range(STEPS)
    ]
    labels = torch.cat([batch.labels["pair"] for batch in found])
    assert set(labels.tolist()) == {0, 1, NO_PAIR}
    assert any(len(batch.row) > len(batch.tokens) for batch in found), "rows hold several texts"
    return found


@pytest.fixture
def both(corpus, tmp_path):
    """Our network and theirs, with the same weights and no dropout."""
    size = len(corpus.tokenizer.vocabulary)
    sizes = {"vocab_size": size, "max_length": 64, "width": 32, "init_std": 0.1}
    heads = bert_heads(tokens=True, pair=True)
    ours = tiny_network(heads, **sizes, dropout=0.0, attention_dropout=0.0)
    save_folder(tmp_path / "ours", ours, corpus.tokenizer)
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "ours")
    return ours.train(), theirs.train()


def test_the_losses_of_a_packed_batch_are_those_of_transformers(both, batches, objective):
    ours, theirs = both
    for batch in batches:
        rows = apart([batch], LENGTH)
        answer = theirs(**rows)
        token_scores = answer.prediction_logits.flatten(0, 1)
        mlm = F.cross_entropy(token_scores, rows["labels"].flatten())
        pair = F.cross_entropy(answer.seq_relationship_logits, rows["next_sentence_label"])
        torch.testing.assert_close(mlm + pair, answer.loss)
        sums = objective(ours, batch, {})
        found = {name: sums[name] / batch.counts[name] for name in ("mlm", "pair")}
        torch.testing.assert_close(found["mlm"], mlm, atol=1e-5, rtol=0)
        torch.testing.assert_close(found["pair"], pair, atol=1e-5, rtol=0)


def test_steps_of_training_lead_to_the_weights_of_transformers(both, batches, objective, tmp_path):
    ours, theirs = both
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    module = TrainingModule(ours, objective)
    optimizer, other = make_optimizer(module, RULES), adamw(theirs, RULES)
    for seed, batch in enumerate(batches):
        result = take_step(module, [MicroBatch(batch, seed)], optimizer, clip=RULES.max_grad_norm)
        other.zero_grad()
        answer = theirs(**apart([batch], LENGTH))
        answer.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), RULES.max_grad_norm)
        other.step()
        assert result.loss == pytest.approx(answer.loss.item(), abs=1e-5)
        assert result.norm == pytest.approx(norm.item(), rel=1e-4)
        assert result.norm > RULES.max_grad_norm, (
            "the gradient was not clipped, so that is not compared"
        )
    theirs.save_pretrained(tmp_path / "theirs")
    back = load_folder(tmp_path / "theirs").network.state_dict()
    moved = 0.0
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, back[name], atol=1e-5, rtol=0, msg=name)
        moved = max(moved, (tensor - before[name]).abs().max().item())
    assert moved > RULES.learning_rate
