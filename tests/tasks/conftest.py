"""What tests of tasks share: a vocabulary, and a network for any task."""

import pytest
import torch

from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import SPECIALS, Vocabulary

WORDS = (
    "the a cat dog sat on mat in paris london john smith lives who where when it began october "
    "1973 . , ? un ##aff ##able good bad film very ##s not"
).split()


@pytest.fixture(scope="session")
def words() -> Tokenizer:
    return Tokenizer(Vocabulary([*SPECIALS, *WORDS]))


@pytest.fixture
def network_for(words):
    """A small random network with the heads of a task."""

    def make(task) -> Network:
        torch.manual_seed(0)
        config = ModelConfig(
            vocab_size=len(words.vocabulary),
            width=16,
            layers=2,
            heads=2,
            inner_width=32,
            max_length=64,
            init_std=0.3,
        )
        heads = task.heads(config, Tokenizers(words, config.max_length), {})
        return Network(Shape.of(config, heads)).eval()

    return make
