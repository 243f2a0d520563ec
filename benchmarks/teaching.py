"""Teacher forcing for a recurrent decoder: all steps in one call, or a Python loop over steps."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from tests.shapes import bert_heads
from tests.stepping import take_step
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.parallel import Pair, files_of_languages, read_pairs
from unmask.jobs.inputs.vocabularies import learn_tokenizers
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import DecoderConfig, Shape
from unmask.objectives.next_token import PairTokens
from unmask.tasks.translate import Translate, TranslateSettings
from unmask.text.tokens import Tokenizers
from unmask.train.optim.optimizers import make_optimizer
from unmask.train.optim.schedules import OptimizerSettings
from unmask.train.recipe import TokenizerSettings
from unmask.train.steps.base import MicroBatch, TrainingModule

BATCH, STEPS = 128, 4  # pairs per step, steps per round
WIDTH, LONGEST = 384, 512
TASK = Translate(TranslateSettings(label_smoothing=0.0))


@dataclass(frozen=True)
class Setting:
    """What all sides of a comparison share: data, threads and a trained model, if any."""

    data: Path
    threads: int
    model: Path | None


def tokens_of(setting: Setting, count: int) -> tuple[Tokenizers, list[PairTokens]]:
    """Return a vocabulary learned from the data, and the first `count` pairs as tokens."""
    paths = files_of_languages(setting.data, "de", "en")
    pairs: list[Pair] = list(read_pairs(paths["train"], Columns()))
    words = learn_tokenizers(TASK, pairs[:4000], TokenizerSettings(size=6000))
    words = replace(words, max_length=LONGEST)
    return words, learned_from(pairs[:count], words)


def learned_from(pairs: list[Pair], words: Tokenizers) -> list[PairTokens]:
    """Turn pairs into training examples."""
    found = TASK.windows(pairs, words, learn=True)
    return [window for _, windows in found for window in windows]


def by_length(tokens: list[PairTokens]) -> list[PairTokens]:
    """Sort by length, so that a batch has examples of similar length, as in unmask's training."""
    return sorted(tokens, key=lambda own: len(own.ids))


def gru(words: int) -> Network:
    """Build the network of the recipe `gru`."""
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=words,
        width=WIDTH,
        layers=1,
        heads=1,
        inner_width=WIDTH,
        cell="gru",
        positions="none",
        dropout=0.3,
    )
    own = DecoderConfig(vocab_size=words, layers=1, shared=True, cell="gru", context="mapped")
    return Network(Shape.of(config, bert_heads(pooler=False, decoder=own)))


class Fused:
    """unmask's side: one call for all steps of the decoder."""

    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(setting.threads)
        words, tokens = tokens_of(setting, BATCH * STEPS)
        tokens = by_length(tokens)
        self.module = TrainingModule(gru(len(words.source.vocabulary)), TASK.objective).train()
        self.optimizer = make_optimizer(self.module, OptimizerSettings(learning_rate=1e-3))
        parts = [tokens[i : i + BATCH] for i in range(0, len(tokens), BATCH)]
        self.batches = [TASK.batch(part, words) for part in parts]
        self.about = {"words": sum(batch.counts[TASK.name] for batch in self.batches)}

    def __call__(self) -> None:
        """Train for one round of steps."""
        for batch in self.batches:
            take_step(self.module, [MicroBatch(batch, 0)], self.optimizer, clip=1.0)


class Loop(nn.Module):
    """The usual loop: for each target token, a decoder step and scores of the whole vocabulary."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed, self.dropout = nn.Embedding(words, WIDTH), nn.Dropout(0.3)
        self.encoder = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.map = nn.Linear(WIDTH, WIDTH)
        self.decoder = nn.GRU(2 * WIDTH, WIDTH, batch_first=True)
        self.read, self.out = nn.Linear(3 * WIDTH, WIDTH), nn.Linear(WIDTH, words)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """[B, S], [B], [B, T] -> [B, T - 1, V]"""
        vectors = self.dropout(self.embed(source))
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.encoder(packed)
        context = torch.tanh(self.map(torch.cat([last[0], last[1]], dim=-1)))
        hidden, scores = torch.zeros_like(context)[None], []
        for at in range(target.shape[1] - 1):
            word = self.dropout(self.embed(target[:, at]))
            fed = torch.cat([word, context], dim=-1)[:, None]
            state, hidden = self.decoder(fed, hidden)
            read = torch.tanh(self.read(torch.cat([state[:, 0], context, word], dim=-1)))
            scores.append(self.out(self.dropout(read)))
        return torch.stack(scores, dim=1)


class Stepwise:
    """The other side: a network of the same sizes and the same pairs, trained with `Loop`."""

    def __init__(self, setting: Setting, *, sort: bool) -> None:
        torch.set_num_threads(setting.threads)
        words, tokens = tokens_of(setting, BATCH * STEPS)
        tokens = by_length(tokens) if sort else tokens
        torch.manual_seed(0)
        self.model = Loop(len(words.source.vocabulary)).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.batches = []
        for at in range(0, len(tokens), BATCH):
            part = tokens[at : at + BATCH]
            lengths = torch.tensor([len(own.source) for own in part])
            source = pad_sequence([torch.tensor(own.source) for own in part], batch_first=True)
            targets = [torch.tensor(own.target) for own in part]
            self.batches.append((source, lengths, pad_sequence(targets, batch_first=True)))

    def __call__(self) -> None:
        """Train for one round of steps."""
        for source, lengths, target in self.batches:
            self.optimizer.zero_grad(set_to_none=True)
            scores = self.model(source, lengths, target)
            loss = F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
