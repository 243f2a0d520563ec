"""unmask's names <-> Hugging Face's, for models and settings, as they stand in config.json.

A network that transformers can compute is written as model type "bert". One that it cannot
(rotary positions, pre-norm, ...) is written as model type "unmask", so that no program loads it as
a BERT by mistake.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from unmask.checkpoint.old_names import LABELS_KEYS as OLD_LABELS_KEYS
from unmask.checkpoint.old_names import labels_table
from unmask.model.config import Activation, ModelConfig
from unmask.model.shape import (
    DECODER,
    LABELS,
    MAIN,
    PAIR,
    PAIRS,
    POOLER,
    TOKENS,
    DecoderConfig,
    Heads,
    LabelAnswer,
    LabelKind,
    LabelsConfig,
    PoolerConfig,
    Shape,
    TokensConfig,
)
from unmask.system.errors import FolderError, SettingsError, unknown_name
from unmask.system.settings import Settings, validate

S = TypeVar("S", bound=Settings)
T = TypeVar("T")
Table = Mapping[str, object]  # contents of config.json, not checked yet
CONFIG_KEYS = {  # field of ModelConfig -> key in config.json
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner_width": "intermediate_size",
    "max_length": "max_position_embeddings",
    "segments": "type_vocab_size",
    "norm_epsilon": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "init_std": "initializer_range",
    "causal": "is_decoder",
}
# Fields whose key config.json may lack; ModelConfig's defaults apply.
OPTIONAL = {"segments", "norm_epsilon", "init_std", "causal", "dropout", "attention_dropout"}
LABELS_KEYS = {"dropout": "classifier_dropout", "mix": "unmask_layers"}
ACTIVATIONS: dict[str, Activation] = {  # of two names for one function, the first is written
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

MODEL = "BertModel"
PRETRAINING = "BertForPreTraining"
MASKED = "BertForMaskedLM"
NEXT = "BertForNextSentencePrediction"
ARCHITECTURES: dict[str, LabelKind | None] = {
    MODEL: None,
    PRETRAINING: None,
    MASKED: None,
    NEXT: None,
    "BertForSequenceClassification": "text",
    "BertForTokenClassification": "token",
    "BertForQuestionAnswering": "span",
}
PROBLEMS: dict[str, LabelAnswer] = {
    "single_label_classification": "one",
    "multi_label_classification": "several",
    "regression": "number",
}


def differences_from_bert(shape: Shape) -> list[str]:
    """List the differences from BERT that transformers cannot compute; often there are none."""
    config, decoder = shape.main, shape.decoder
    own_layers = [own.model_dump(exclude_defaults=True) for own in config.layer_settings]
    mixes = {name: head.mix for name, head in shape.heads.items() if head.mix != "last"}
    others = {n for n in shape.heads if n not in (POOLER, TOKENS, PAIR, LABELS, DECODER)}
    return [
        f"{name} = {value!r}"
        for name, value, ordinary in (
            ("positions", config.positions, "learned"),
            ("head_size", config.head_width, config.width / config.heads),
            ("bias", config.bias, True),
            ("norm", config.norm, "post"),
            ("norm_kind", config.norm_kind, "layer"),
            ("norm_bias", config.norm_bias, True),
            ("gated", config.gated, False),
            ("window", config.window, None),
            ("layer_settings", own_layers if any(own_layers) else [], []),
            ("layer_groups", config.groups, config.layers),
            ("cell", config.cell, "attention"),
            ("embedding_width", config.embedding_width, None),
            ("encoders", tuple(shape.encoders), (MAIN,)),
            ("decoder", decoder and decoder.cell, None),
            ("layers of the heads", mixes, {}),
            ("heads", tuple(sorted(others)), ()),
        )
        if value != ordinary
    ]


def their_config(shape: Shape, pad_id: int) -> dict[str, Any]:
    """Build the contents of config.json for a network."""
    config, labels, unusual = shape.main, shape.labels, differences_from_bert(shape)
    table: dict[str, Any] = {
        "model_type": "unmask" if unusual else "bert",
        "architectures": [architecture(shape)],
        **{theirs: getattr(config, ours) for ours, theirs in CONFIG_KEYS.items()},
        "hidden_act": _key_of(config.activation, ACTIVATIONS),
        "position_embedding_type": "absolute",
        "pad_token_id": pad_id,
        "use_cache": False,
        "tie_word_embeddings": True,
    }
    if unusual:
        del table["position_embedding_type"]
        # BERT's keys cannot describe this network, so the file holds its whole shape as well.
        table["unmask"] = shape.model_dump(mode="json")
    if labels:
        table["classifier_dropout"] = labels.dropout
        if labels.on == "text":
            table["problem_type"] = _key_of(labels.answer, PROBLEMS)
        table["id2label"] = {str(i): name for i, name in enumerate(labels.names)}
        table["label2id"] = {name: i for i, name in enumerate(labels.names)}
    return table


def our_encoders(table: Table, path: Path) -> dict[str, ModelConfig]:
    """Read the encoders from config.json, or refuse a model that is not a BERT."""
    kind = table.get("model_type")
    if kind is None:
        raise FolderError(
            f"{path}: 'model_type' is missing, as in the oldest folders. If it is a BERT, add "
            '"model_type": "bert" to it.'
        )
    if kind not in ("bert", "unmask"):
        named = table.get("architectures")
        raise FolderError(
            f"{path}: model type {kind!r:.40} (architectures {named!r:.80}); it is not BERT, and "
            "unmask reads only BERT. Give a folder with model type 'bert'."
        )
    for key in ("auto_map", "trust_remote_code"):
        if table.get(key):
            raise FolderError(
                f"{path}: '{key}' asks to run code of its own; unmask runs no code from a folder, "
                f"and without it the model is not what it claims. Remove '{key}' if it is a BERT."
            )
    if kind == "unmask":
        own = table.get("unmask")
        if not isinstance(own, dict):
            raise FolderError(f"{path}: model type 'unmask' without its table 'unmask'.")
        if "encoders" in own:
            return _checked(Shape, own, {}, path).encoders
        return {MAIN: _checked(ModelConfig, own, {}, path)}  # as version 0.1 wrote it
    for key, ordinary in (("position_embedding_type", "absolute"), ("add_cross_attention", False)):
        if table.get(key, ordinary) != ordinary:
            raise FolderError(f"{path}: '{key}' is {table[key]!r:.40}; BERT's is {ordinary!r}.")
    hidden_act = table.get("hidden_act", "gelu")
    given: dict[str, object] = {"activation": _known("hidden_act", hidden_act, ACTIVATIONS, path)}
    for ours, theirs in CONFIG_KEYS.items():
        if theirs in table:
            given[ours] = table[theirs]
        elif ours not in OPTIONAL:
            raise FolderError(f"{path}: '{theirs}' is missing; a BERT config has it.")
    return {MAIN: _checked(ModelConfig, given, CONFIG_KEYS, path)}


def _checked(kind: type[S], own: Table, keys: Mapping[str, str], where: Path | str) -> S:
    """Validate settings; errors name the keys of config.json instead of unmask's."""
    try:
        return validate(kind, own, where=str(where))
    except SettingsError as error:
        message = str(error)
        for ours, theirs in keys.items():
            named = rf"^({re.escape(str(where))}:? ['\[]){ours}(?=['.\]])"
            message = re.sub(named, rf"\g<1>{theirs}", message)
        raise FolderError(message) from None


def _known(what: str, said: object, table: Mapping[str, T], path: Path) -> T:
    """Translate a name in config.json, or refuse one that the table does not have."""
    if not isinstance(said, str) or said not in table:
        raise FolderError(f"{path}: {unknown_name(what, str(said), table)}")
    return table[said]


def _key_of(value: object, table: Mapping[str, object]) -> str:
    """Return the name in config.json that stands for one of unmask's values."""
    return next(key for key, meant in table.items() if meant == value)


def architecture(shape: Shape) -> str:
    """Return the class of transformers that has the heads of this network."""
    if shape.labels:
        return _key_of(shape.labels.on, ARCHITECTURES)
    if TOKENS in shape.heads:
        return PRETRAINING if PAIR in shape.heads else MASKED
    return NEXT if PAIR in shape.heads else MODEL


def our_shape(
    encoders: Mapping[str, ModelConfig],
    table: Table,
    sizes: Mapping[str, tuple[int, ...]],
    path: Path,
) -> Shape:
    """Build the shape of a network from config.json; BERT's heads are found by their tensors."""
    own = table.get("unmask")
    if table.get("model_type") == "unmask" and isinstance(own, dict) and "encoders" in own:
        return _checked(Shape, own, {}, path)
    # `architectures` is no help here: published folders name BertForMaskedLM and also carry a
    # pooler and a next-sentence head.
    heads: Heads = {}
    if "bert.pooler.dense.weight" in sizes:
        heads[POOLER] = PoolerConfig()
    if "cls.predictions.bias" in sizes:
        heads[TOKENS] = TokensConfig()
    if "cls.seq_relationship.weight" in sizes:
        heads[PAIR] = PAIRS
    labels = _labels(table, sizes, path)
    if labels:
        heads[LABELS] = labels
    # Version 0.1 wrote these beside the config of the encoder.
    for name, one in _table(table, "unmask_heads", path).items():
        where, renamed = f"unmask_heads.{name}", {v: k for k, v in OLD_LABELS_KEYS.items()}
        own = labels_table(_table({where: one}, where, path))
        heads[name] = _checked(LabelsConfig, own, renamed, f"{path} [{where}]")
    if table.get("unmask_decoder") is not None:
        decoder = _table(table, "unmask_decoder", path)
        heads[DECODER] = _checked(DecoderConfig, decoder, {}, f"{path} [unmask_decoder]")
    return _checked(Shape, {"encoders": encoders, "heads": heads}, {}, path)


def _table(table: Table, key: str, path: Path) -> dict[str, object]:
    """Return a table inside config.json, empty if it is missing."""
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise FolderError(f"{path}: '{key}' is {found!r:.60}; need a table.")
    return found


def _labels(table: Table, sizes: Mapping[str, tuple[int, ...]], path: Path) -> LabelsConfig | None:
    """Read the label head of a fine-tuned BERT; None if it has none."""
    named = table.get("architectures")
    claimed = named[0] if isinstance(named, list) and named else MODEL
    kind = _known("architecture", claimed, ARCHITECTURES, path)
    if kind is None:
        return None
    layer = "qa_outputs.weight" if kind == "span" else "classifier.weight"
    if not sizes.get(layer):
        raise FolderError(
            f"{path}: says {claimed}, but there is no tensor '{layer}' with a row for each label."
        )
    names = _label_names(table, sizes[layer], path)
    dropout = table.get("classifier_dropout")
    own = {
        "on": kind,
        "names": names,
        "dropout": table.get("hidden_dropout_prob", 0.1) if dropout is None else dropout,
        "answer": _answer(table, len(names), path) if kind == "text" else "one",
        "mix": table.get("unmask_layers") or "last",  # as version 0.1 wrote it
    }
    return _checked(LabelsConfig, own, LABELS_KEYS, path)


def _answer(table: Table, count: int, path: Path) -> LabelAnswer:
    """Read what the labels of a text mean; by default, a single label is a number."""
    said = table.get("problem_type")
    if said is None:
        return "number" if count == 1 else "one"
    return _known("problem_type", said, PROBLEMS, path)


def _label_names(table: Table, shape: tuple[int, ...], path: Path) -> tuple[str, ...]:
    count, names = shape[0], table.get("id2label")
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(count)}:
        raise FolderError(f"{path}: 'id2label' does not name the labels 0 to {count - 1}.")
    return tuple(str(names[str(i)]) for i in range(count))


# An activation without a name in config.json could be trained but not saved.
assert set(ACTIVATIONS.values()) == set(get_args(Activation))
