"""Names of tensors and tables in version 0.1 -> today's names.

Folders and checkpoints of version 0.1 still load, because everything that reads them translates
names here.
"""

from collections.abc import Mapping

from unmask.model.shape import DECODER, LABELS, MAIN, PAIR, POOLER, TOKENS

# Prefixes of the names of tensors in a network; the first match wins.
TENSORS = (
    ("encoder.tokens.", f"encoders.{MAIN}.embeddings.tokens."),
    ("encoder.segments.", f"encoders.{MAIN}.embeddings.segments."),
    ("encoder.positions.", f"encoders.{MAIN}.embeddings.positions."),
    ("encoder.norm.", f"encoders.{MAIN}.embeddings.norm."),
    ("encoder.", f"encoders.{MAIN}."),
    ("pooler.", f"heads.{POOLER}."),
    ("token_head.", f"heads.{TOKENS}."),
    ("pair_head.", f"heads.{PAIR}."),
    ("label_head.", f"heads.{LABELS}."),
    ("label_heads.", "heads."),
    ("decoder.", f"heads.{DECODER}."),
)
LABELS_KEYS = {
    "labels": "on",
    "label_names": "names",
    "label_dropout": "dropout",
    "label_answer": "answer",
}


def tensor_name(name: str) -> str:
    """Translate the name of a tensor to today's.

    >>> tensor_name("encoder.norm.weight"), tensor_name("heads.pooler.dense.bias")
    ('encoders.main.embeddings.norm.weight', 'heads.pooler.dense.bias')
    """
    for old, new in TENSORS:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def labels_table(table: Mapping[str, object]) -> dict[str, object]:
    """Translate the config of a label head to today's keys."""
    renamed = {LABELS_KEYS.get(key, key): value for key, value in table.items()}
    return {"kind": "labels", **renamed}
