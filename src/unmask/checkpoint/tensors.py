"""unmask's tensors <-> Hugging Face's: their names, and which rows of a joined tensor each is."""

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
    """Where a tensor of a folder goes: into some rows of one of the network's tensors."""

    ours: str
    rows: slice
    shape: tuple[int, ...]


EMBEDDINGS, OWN_PREFIX = f"encoders.{MAIN}.embeddings.", "unmask."
RULES = (  # our prefix, their prefix; the first match wins
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
    """Map the name of every tensor in this network's folder to its place in the network."""
    slots: dict[str, Slot] = {}
    labels = network.shape.labels
    label = "qa_outputs." if labels and labels.on == "span" else "classifier."
    rules = [*RULES, (f"heads.{LABELS}.dense.", label)]
    if network.config.positions == "learned":  # only these have a table in BERT
        rules.append((f"{EMBEDDINGS}positions.table.", "bert.embeddings.position_embeddings."))
    state: dict[str, Tensor] = network.state_dict()
    for ours, tensor in state.items():
        rows, *rest = tensor.shape
        # Query, key and value are one matrix in memory and three on disk, as in Hugging Face's
        # files.
        names = _their_names(ours, rules)
        step = rows // len(names)
        for i, name in enumerate(names):
            slots[name] = Slot(ours, slice(i * step, (i + 1) * step), (step, *rest))
    return slots


def _their_names(name: str, rules: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the name of a tensor on disk, or three names for the joined query, key and value."""
    prefix, rest = "", name
    if block := _BLOCK.fullmatch(name):
        prefix, rest, rules = f"bert.encoder.layer.{block[1]}.", block[2], BLOCK_RULES
    for our_prefix, *their_prefixes in rules:
        if rest.startswith(our_prefix):
            return [
                prefix + their_prefix + rest.removeprefix(our_prefix)
                for their_prefix in their_prefixes
            ]
    return [OWN_PREFIX + name]  # a part that BERT does not have


IGNORED = ("bert.embeddings.position_ids",)  # a counter 0, 1, 2, ... that old versions saved
TIED = {  # copies that some versions save beside the original
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def normalized_name(name: str) -> str:
    """Normalize a tensor's name to that of `layout`: no gamma and beta, always with the prefix.

    >>> normalized_name("embeddings.LayerNorm.gamma")
    'bert.embeddings.LayerNorm.weight'
    """
    if name.startswith(OWN_PREFIX):
        return OWN_PREFIX + tensor_name(name.removeprefix(OWN_PREFIX))
    if name.endswith(".gamma"):
        name = name.removesuffix("gamma") + "weight"
    elif name.endswith(".beta"):
        name = name.removesuffix("beta") + "bias"
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def on_disk(name: str, shape: Shape) -> str:
    """Return a name of `layout` as transformers writes it: a model without heads has no prefix."""
    return name.removeprefix("bert.") if architecture(shape) == MODEL else name
