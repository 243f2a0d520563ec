"""Our tensors <-> Hugging Face's: what each is called in a folder, and which rows of ours it is."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from unmask.checkpoint.names import MODEL, architecture
from unmask.checkpoint.old_names import tensor_name
from unmask.model.network import Network
from unmask.model.shape import LABELS, MAIN, PAIR, POOLER, TOKENS, Shape


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one of their tensors goes: into some rows of one of ours."""

    ours: str
    rows: slice
    shape: tuple[int, ...]


EMBEDDINGS, OWN = f"encoders.{MAIN}.embeddings.", "unmask."
RULES = (  # our prefix, their prefix; the first that fits wins
    (f"{EMBEDDINGS}tokens.", "bert.embeddings.word_embeddings."),
    (f"{EMBEDDINGS}segments.", "bert.embeddings.token_type_embeddings."),
    (f"{EMBEDDINGS}norm.", "bert.embeddings.LayerNorm."),
    (f"heads.{POOLER}.dense.", "bert.pooler.dense."),
    (f"heads.{TOKENS}.dense.", "cls.predictions.transform.dense."),
    (f"heads.{TOKENS}.norm.", "cls.predictions.transform.LayerNorm."),
    (f"heads.{TOKENS}.bias", "cls.predictions.bias"),
    (f"heads.{PAIR}.dense.", "cls.seq_relationship."),
)
_BLOCK = re.compile(rf"encoders\.{MAIN}\.blocks\.(\d+)\.(.+)")
BLOCK_RULES = (
    (
        "attention.qkv.",  # joined: a third of the rows each
        "attention.self.query.",
        "attention.self.key.",
        "attention.self.value.",
    ),
    ("attention.output.", "attention.output.dense."),
    ("attention_norm.", "attention.output.LayerNorm."),
    ("feed.inner.", "intermediate.dense."),
    ("feed.outer.", "output.dense."),
    ("feed_norm.", "output.LayerNorm."),
)


def layout(network: Network) -> dict[str, Slot]:
    """Every tensor that a folder of this network holds, by their name."""
    slots: dict[str, Slot] = {}
    labels = network.shape.labels
    label = "qa_outputs." if labels and labels.on == "span" else "classifier."
    rules = [*RULES, (f"heads.{LABELS}.dense.", label)]
    if network.config.positions == "learned":  # BERT has no tables of other kinds
        rules.append((f"{EMBEDDINGS}positions.table.", "bert.embeddings.position_embeddings."))
    state: dict[str, Tensor] = network.state_dict()
    for ours, tensor in state.items():
        rows, *rest = tensor.shape
        names = _their_names(ours, rules)
        step = rows // len(names)
        for i, name in enumerate(names):
            slots[name] = Slot(ours, slice(i * step, (i + 1) * step), (step, *rest))
    return slots


def _their_names(ours: str, rules: Sequence[tuple[str, ...]]) -> list[str]:
    """One name, or three for the joined query, key and value."""
    prefix, part = "", ours
    if block := _BLOCK.fullmatch(ours):
        prefix, part, rules = f"bert.encoder.layer.{block[1]}.", block[2], BLOCK_RULES
    for begin, *theirs in rules:
        if part.startswith(begin):
            return [prefix + their + part.removeprefix(begin) for their in theirs]
    return [OWN + ours]  # a part that BERT does not have


IGNORED = ("bert.embeddings.position_ids",)  # a counter 0, 1, 2, ... that old versions saved
TIED = {  # copies that some versions save beside the original
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def settle(name: str) -> str:
    """A tensor's name as `layout` has it: no gamma and beta, always with the prefix.

    >>> settle("embeddings.LayerNorm.gamma")
    'bert.embeddings.LayerNorm.weight'
    """
    if name.startswith(OWN):
        return OWN + tensor_name(name.removeprefix(OWN))
    if name.endswith(".gamma"):
        name = name.removesuffix("gamma") + "weight"
    elif name.endswith(".beta"):
        name = name.removesuffix("beta") + "bias"
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def on_disk(name: str, shape: Shape) -> str:
    """A name of `layout` as transformers writes it: a model without heads has no prefix."""
    return name.removeprefix("bert.") if architecture(shape) == MODEL else name
