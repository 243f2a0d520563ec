"""Pre-training with transformers, for comparison: BERT with one padded example per row."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batch import Batch
from unmask.data.corpus.examples import NO_PAIR
from unmask.model.config import ModelConfig
from unmask.train.optim.schedules import OptimizerSettings

IGNORED = -100  # transformers' label for tokens without a loss


def bert(config: ModelConfig, *, pairs: bool = True) -> torch.nn.Module:
    """Build transformers' network of the same shape and dropout."""
    from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

    kind = BertForPreTraining if pairs else BertForMaskedLM
    made = kind(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.inner_width,
            max_position_embeddings=config.max_length,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
        )
    )
    return made.train()


def apart(batches: Sequence[Batch], length: int, *, pairs: bool = True) -> dict[str, Tensor]:
    """Unpack batches into one padded row per example, with the same tokens masked.

    With `pairs`, the labels of next-sentence prediction are included.
    """
    count = sum(len(batch.row) for batch in batches)
    names = "input_ids", "token_type_ids", "attention_mask"
    rows = {name: torch.zeros(count, length, dtype=torch.long) for name in names}
    rows["labels"] = torch.full((count, length), IGNORED)
    at = 0
    for batch in batches:
        answers = torch.full((batch.tokens.numel(),), IGNORED)
        answers[batch.labels["mlm_places"]] = batch.labels["mlm_tokens"]
        answers = answers.view_as(batch.tokens)
        for row, start, size in zip(batch.row, batch.start, batch.length, strict=True):
            stretch = (row, slice(int(start), int(start + size)))
            rows["input_ids"][at, :size] = batch.tokens[stretch]
            rows["token_type_ids"][at, :size] = batch.segments[stretch]
            rows["attention_mask"][at, :size] = 1
            rows["labels"][at, :size] = answers[stretch]
            at += 1
    if not pairs:
        return rows
    order = torch.cat([batch.labels["pair"] for batch in batches])
    return {**rows, "next_sentence_label": order.where(order != NO_PAIR, IGNORED)}


def trimmed(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut padded rows to the longest example, as transformers' collators pad."""
    longest = int(rows["attention_mask"].sum(dim=1).max())
    return {
        name: tensor[:, :longest].contiguous() if tensor.ndim == 2 else tensor
        for name, tensor in rows.items()
    }


def adamw(model: torch.nn.Module, rules: OptimizerSettings) -> torch.optim.AdamW:
    """Build AdamW as in transformers' examples, but fused; biases and norms get no weight decay."""
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    rest = [p for p in model.parameters() if not any(p is other for other in plain)]
    return torch.optim.AdamW(
        [
            {"params": rest, "weight_decay": rules.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=rules.learning_rate,
        betas=(rules.beta1, rules.beta2),
        eps=rules.epsilon,
        fused=True,
    )


class PaddedRows:
    """Training steps of a plain loop on padded rows."""

    def __init__(
        self,
        config: ModelConfig,
        batches: Sequence[Batch],
        length: int,
        rules: OptimizerSettings,
        *,
        micro_rows: int,
        trim: bool,
    ) -> None:
        torch.manual_seed(0)
        self.model = bert(config)
        rows = apart(batches, length)
        count = len(rows["labels"])
        parts = (
            {name: tensor[at : at + micro_rows] for name, tensor in rows.items()}
            for at in range(0, count, micro_rows)
        )
        self.parts = [trimmed(part) if trim else part for part in parts]
        self.optimizer = adamw(self.model, rules)
        self.clip = rules.max_grad_norm

    def step(self) -> None:
        """Train on all examples once."""
        step(self.model, self.optimizer, self.parts, self.clip)


def step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[dict[str, Tensor]],
    clip: float,
) -> None:
    """Take a training step of a plain loop, with gradients accumulated over several batches."""
    optimizer.zero_grad(set_to_none=True)
    for part in parts:
        (model(**part).loss / len(parts)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def scores(model: torch.nn.Module, batches: Sequence[Batch], length: int) -> dict[str, float]:
    """Return masked-token loss and accuracy on the examples that unmask is scored on."""
    sums = {"mlm": 0.0, "mlm_accuracy": 0.0}
    hidden = 0
    model.eval()
    with torch.no_grad():
        for batch in batches:
            rows = apart([batch], length, pairs=False)
            at = rows["labels"] != IGNORED
            guesses, answers = model(**rows).logits[at], rows["labels"][at]
            sums["mlm"] += float(F.cross_entropy(guesses, answers, reduction="sum"))
            sums["mlm_accuracy"] += int((guesses.argmax(-1) == answers).sum())
            hidden += len(answers)
    model.train()
    return {name: value / hidden for name, value in sums.items()}
