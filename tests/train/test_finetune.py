"""Fine-tuning: the same loop, a head on a trained encoder."""

import torch

import unmask.train.finetune as finetune
from tests.conftest import tiny_network
from unmask.checkpoint.folder import load_folder
from unmask.data.labelled import Labelled
from unmask.model.config import HeadsConfig
from unmask.tasks.classify import Classify


def examples(count):
    """A text of the token 6 or of the token 7: the label says which."""
    return [
        Labelled([2, *[6 + i % 2] * (3 + i % 4), 3], [0] * (5 + i % 4), i % 2) for i in range(count)
    ]


def test_what_a_token_gives_away_is_learned_and_saved_as_a_model(tmp_path, tokenizer):
    start = tiny_network(HeadsConfig(tokens=True, pair=True))
    task = Classify(["six", "seven"])
    scores = finetune.fine_tune(
        start,
        tokenizer,
        task,
        examples(40),
        examples(12),
        tmp_path / "run",
        steps=40,
        rate=3e-3,
        rows=4,
        notice=lambda line: None,
    )
    assert scores["accuracy"] == 1.0
    folder = load_folder(tmp_path / "run" / "model")
    assert folder.network.heads.label_names == ("six", "seven")


def test_the_encoder_is_taken_over_and_the_head_is_new(tokenizer):
    start = tiny_network(HeadsConfig(tokens=True, pair=True))
    network = finetune.with_task(start, Classify(["a", "b"]), seed=1)
    for name, tensor in start.encoder.state_dict().items():
        assert torch.equal(network.encoder.state_dict()[name], tensor), name
    assert torch.equal(network.pooler.dense.weight, start.pooler.dense.weight)
    again = finetune.with_task(start, Classify(["a", "b"]), seed=1)
    assert torch.equal(network.label_head.dense.weight, again.label_head.dense.weight)
