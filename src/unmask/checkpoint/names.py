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
    layer_overrides = [layer.model_dump(exclude_defaults=True) for layer in config.layer_settings]
    mixes = {name: head.mix for name, head in shape.heads.items() if head.mix != "last"}
    other_heads = {
        name for name in shape.heads if name not in (POOLER, TOKENS, PAIR, LABELS, DECODER)
    }
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
            ("layer_settings", layer_overrides if any(layer_overrides) else [], []),
            ("layer_groups", config.groups, config.layers),
            ("cell", config.cell, "attention"),
            ("embedding_width", config.embedding_width, None),
            ("encoders", tuple(shape.encoders), (MAIN,)),
            ("decoder", decoder and decoder.cell, None),
            ("layers of the heads", mixes, {}),
            ("heads", tuple(sorted(other_heads)), ()),
        )
        if value != ordinary
    ]


def their_config(shape: Shape, pad_id: int) -> dict[str, Any]:
    """Build the contents of config.json for a network."""
    config, labels, differences = shape.main, shape.labels, differences_from_bert(shape)
    table: dict[str, Any] = {
        "model_type": "unmask" if differences else "bert",
        "architectures": [architecture(shape)],
        **{theirs: getattr(config, ours) for ours, theirs in CONFIG_KEYS.items()},
        "hidden_act": _key_of(config.activation, ACTIVATIONS),
        "position_embedding_type": "absolute",
        "pad_token_id": pad_id,
        "use_cache": False,
        "tie_word_embeddings": True,
    }
    if differences:
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
    model_type = table.get("model_type")
    if model_type is None:
        raise FolderError(
            f"{path}: 'model_type' is missing, as in very old folders. If the model is a BERT, add "
            '"model_type": "bert" to the file.'
        )
    if model_type not in ("bert", "unmask"):
        architectures = table.get("architectures")
        raise FolderError(
            f"{path}: model type {model_type!r:.40} (architectures {architectures!r:.80}) is not "
            "BERT, and unmask reads only BERT. Use a folder with model type 'bert'."
        )
    for key in ("auto_map", "trust_remote_code"):
        if table.get(key):
            raise FolderError(
                f"{path}: '{key}' asks to run the folder's own code, which unmask never does, and "
                "without that code the model computes something else. If it is a plain BERT, "
                f"remove '{key}'."
            )
    if model_type == "unmask":
        stored = table.get("unmask")
        if not isinstance(stored, dict):
            raise FolderError(
                f"{path}: the model type is 'unmask', but the table 'unmask' is missing."
            )
        if "encoders" in stored:
            return _validated(Shape, stored, {}, path).encoders
        return {MAIN: _validated(ModelConfig, stored, {}, path)}  # as version 0.1 wrote it
    for key, ordinary in (("position_embedding_type", "absolute"), ("add_cross_attention", False)):
        if table.get(key, ordinary) != ordinary:
            raise FolderError(f"{path}: '{key}' is {table[key]!r:.40}; in BERT it is {ordinary!r}.")
    hidden_act = table.get("hidden_act", "gelu")
    settings: dict[str, object] = {
        "activation": _translated("hidden_act", hidden_act, ACTIVATIONS, path)
    }
    for ours, theirs in CONFIG_KEYS.items():
        if theirs in table:
            settings[ours] = table[theirs]
        elif ours not in OPTIONAL:
            raise FolderError(f"{path}: '{theirs}' is missing; every BERT config has it.")
    return {MAIN: _validated(ModelConfig, settings, CONFIG_KEYS, path)}


def _validated(
    settings_class: type[S], values: Table, keys: Mapping[str, str], where: Path | str
) -> S:
    """Validate settings; errors name the keys of config.json instead of unmask's."""
    try:
        return validate(settings_class, values, where=str(where))
    except SettingsError as error:
        message = str(error)
        for ours, theirs in keys.items():
            pattern = rf"^({re.escape(str(where))}:? ['\[]){ours}(?=['.\]])"
            message = re.sub(pattern, rf"\g<1>{theirs}", message)
        raise FolderError(message) from None


def _translated(key: str, name: object, table: Mapping[str, T], path: Path) -> T:
    """Translate a name in config.json, or refuse one that the table does not have."""
    if not isinstance(name, str) or name not in table:
        raise FolderError(f"{path}: {unknown_name(key, str(name), table)}")
    return table[name]


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
    stored = table.get("unmask")
    if table.get("model_type") == "unmask" and isinstance(stored, dict) and "encoders" in stored:
        return _validated(Shape, stored, {}, path)
    # `architectures` is no help here: published folders name BertForMaskedLM and also carry a
    # pooler and a next-sentence head.
    heads: Heads = {}
    if "bert.pooler.dense.weight" in sizes:
        heads[POOLER] = PoolerConfig()
    if "cls.predictions.bias" in sizes:
        heads[TOKENS] = TokensConfig()
    if "cls.seq_relationship.weight" in sizes:
        heads[PAIR] = PAIRS
    labels = _label_head(table, sizes, path)
    if labels:
        heads[LABELS] = labels
    # Version 0.1 wrote these beside the config of the encoder.
    for name, old_head in _table(table, "unmask_heads", path).items():
        where, old_keys = f"unmask_heads.{name}", {old: new for new, old in OLD_LABELS_KEYS.items()}
        stored = labels_table(_table({where: old_head}, where, path))
        heads[name] = _validated(LabelsConfig, stored, old_keys, f"{path} [{where}]")
    if table.get("unmask_decoder") is not None:
        decoder = _table(table, "unmask_decoder", path)
        heads[DECODER] = _validated(DecoderConfig, decoder, {}, f"{path} [unmask_decoder]")
    return _validated(Shape, {"encoders": encoders, "heads": heads}, {}, path)


def _table(table: Table, key: str, path: Path) -> dict[str, object]:
    """Return a table inside config.json, empty if it is missing."""
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise FolderError(f"{path}: '{key}' is {value!r:.60}; need a table.")
    return value


def _label_head(
    table: Table, sizes: Mapping[str, tuple[int, ...]], path: Path
) -> LabelsConfig | None:
    """Read the label head of a fine-tuned BERT; None if it has none."""
    architectures = table.get("architectures")
    claimed = architectures[0] if isinstance(architectures, list) and architectures else MODEL
    label_kind = _translated("architecture", claimed, ARCHITECTURES, path)
    if label_kind is None:
        return None
    layer = "qa_outputs.weight" if label_kind == "span" else "classifier.weight"
    if not sizes.get(layer):
        raise FolderError(
            f"{path}: the architecture is {claimed}, but there is no tensor '{layer}' with one row "
            "per label."
        )
    names = _label_names(table, sizes[layer], path)
    dropout = table.get("classifier_dropout")
    values = {
        "on": label_kind,
        "names": names,
        "dropout": table.get("hidden_dropout_prob", 0.1) if dropout is None else dropout,
        "answer": _label_answer(table, len(names), path) if label_kind == "text" else "one",
        "mix": table.get("unmask_layers") or "last",  # as version 0.1 wrote it
    }
    return _validated(LabelsConfig, values, LABELS_KEYS, path)


def _label_answer(table: Table, count: int, path: Path) -> LabelAnswer:
    """Read what the labels of a text mean; by default, a single label is a number."""
    problem_type = table.get("problem_type")
    if problem_type is None:
        return "number" if count == 1 else "one"
    return _translated("problem_type", problem_type, PROBLEMS, path)


def _label_names(table: Table, shape: tuple[int, ...], path: Path) -> tuple[str, ...]:
    count, names = shape[0], table.get("id2label")
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(count)}:
        raise FolderError(f"{path}: 'id2label' must name exactly the labels 0 to {count - 1}.")
    return tuple(str(names[str(i)]) for i in range(count))


# An activation without a name in config.json could be trained but not saved.
assert set(ACTIVATIONS.values()) == set(get_args(Activation))
