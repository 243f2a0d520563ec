"""Our names <-> Hugging Face's: the only file that knows theirs of models and settings.

A network that transformers can compute is written as model type "bert". One that it cannot
(rotary positions, pre-norm, ...) is written as model type "unmask", so that nobody loads it as
something it is not.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from unmask.errors import FolderError, SettingsError, unknown
from unmask.model.config import Activation, Answer, HeadsConfig, LabelKind, ModelConfig
from unmask.settings import Settings, build

S = TypeVar("S", bound=Settings)
T = TypeVar("T")
CONFIG_KEYS = {
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
OPTIONAL = {"segments", "norm_epsilon", "init_std", "causal", "dropout", "attention_dropout"}
HEADS_KEYS = {
    "label_dropout": "classifier_dropout",
    "layers": "unmask_layers",
    "several": "unmask_heads",
    "decoder": "unmask_decoder",
}
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
PROBLEMS: dict[str, Answer] = {
    "single_label_classification": "one",
    "multi_label_classification": "several",
    "regression": "number",
}


def departures(config: ModelConfig, heads: HeadsConfig) -> list[str]:
    """Where a network departs from BERT, so that transformers cannot compute it; often nowhere."""
    return [
        f"{name} = {value!r}"
        for name, value, ordinary in (
            ("positions", config.positions, "learned"),
            ("norm", config.norm, "post"),
            ("gated", config.gated, False),
            ("window", config.window, None),
            ("cell", config.cell, "attention"),
            ("decoder", heads.decoder and heads.decoder.cell, None),
            ("layers of the head", heads.layers, ()),
            ("heads", tuple(heads.several), ()),
        )
        if value != ordinary
    ]


def their_config(config: ModelConfig, heads: HeadsConfig, pad_id: int) -> dict[str, Any]:
    """The contents of config.json."""
    table: dict[str, Any] = {
        "model_type": "unmask" if departures(config, heads) else "bert",
        "architectures": [architecture(heads)],
        **{theirs: getattr(config, ours) for ours, theirs in CONFIG_KEYS.items()},
        "hidden_act": _key_of(config.activation, ACTIVATIONS),
        "position_embedding_type": "absolute",
        "pad_token_id": pad_id,
        "use_cache": False,
        "tie_word_embeddings": True,
    }
    if departures(config, heads):
        del table["position_embedding_type"]
        table["unmask"] = config.model_dump(mode="json")
        table["unmask_layers"] = list(heads.layers)
        table["unmask_heads"] = {n: own.model_dump(mode="json") for n, own in heads.several.items()}
    if heads.decoder:
        table["unmask_decoder"] = heads.decoder.model_dump(mode="json")
    if heads.labels:
        table["classifier_dropout"] = heads.label_dropout
        if heads.labels == "text":
            table["problem_type"] = _key_of(heads.label_answer, PROBLEMS)
        table["id2label"] = {str(i): name for i, name in enumerate(heads.label_names)}
        table["label2id"] = {name: i for i, name in enumerate(heads.label_names)}
    return table


def our_config(table: Mapping[str, Any], path: Path) -> ModelConfig:
    """config.json -> the shape of the network, or a refusal to read what is no BERT."""
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
        return _checked(ModelConfig, own, {}, path)
    for key, ordinary in (("position_embedding_type", "absolute"), ("add_cross_attention", False)):
        if table.get(key, ordinary) != ordinary:
            raise FolderError(f"{path}: '{key}' is {table[key]!r:.40}; BERT's is {ordinary!r}.")
    own = {"activation": _known("hidden_act", table.get("hidden_act", "gelu"), ACTIVATIONS, path)}
    for ours, theirs in CONFIG_KEYS.items():
        if theirs in table:
            own[ours] = table[theirs]
        elif ours not in OPTIONAL:
            raise FolderError(f"{path}: '{theirs}' is missing; a BERT config has it.")
    return _checked(ModelConfig, own, CONFIG_KEYS, path)


def _checked(kind: type[S], own: dict[str, Any], keys: Mapping[str, str], path: Path) -> S:
    """Build settings of ours; errors name the keys of config.json instead of ours."""
    try:
        return build(kind, own, where=str(path))
    except SettingsError as error:
        message = str(error)
        for ours, theirs in keys.items():
            named = rf"^({re.escape(str(path))}:? ['\[]){ours}(?=['.\]])"
            message = re.sub(named, rf"\g<1>{theirs}", message)
        raise FolderError(message) from None


def _known(what: str, said: object, table: Mapping[str, T], path: Path) -> T:
    """Translate a name in config.json, or refuse one that the table does not have."""
    if not isinstance(said, str) or said not in table:
        raise FolderError(f"{path}: {unknown(what, str(said), table)}")
    return table[said]


def _key_of(value: object, table: Mapping[str, object]) -> str:
    """Return the name in config.json for a value of ours."""
    return next(key for key, meant in table.items() if meant == value)


def architecture(heads: HeadsConfig) -> str:
    """The class of transformers that has these heads."""
    if heads.labels:
        return _key_of(heads.labels, ARCHITECTURES)
    if heads.tokens:
        return PRETRAINING if heads.pair else MASKED
    return NEXT if heads.pair else MODEL


def our_heads(
    table: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], path: Path
) -> HeadsConfig:
    """The heads that are there: told by the tensors, whose presence cannot lie."""
    named = table.get("architectures")
    claimed = named[0] if isinstance(named, list) and named else MODEL
    labels = _known("architecture", claimed, ARCHITECTURES, path)
    layer = "qa_outputs.weight" if labels == "span" else "classifier.weight"
    if labels and not shapes.get(layer):
        raise FolderError(
            f"{path}: says {claimed}, but there is no tensor '{layer}' with a row for each label."
        )
    names = _label_names(table, shapes[layer], path) if labels else ()
    dropout = table.get("classifier_dropout")
    own = {
        "pooler": "bert.pooler.dense.weight" in shapes,
        "tokens": "cls.predictions.bias" in shapes,
        "pair": "cls.seq_relationship.weight" in shapes,
        "labels": labels,
        "label_names": names,
        "label_dropout": table.get("hidden_dropout_prob", 0.1) if dropout is None else dropout,
        "label_answer": _answer(table, len(names), path) if labels == "text" else "one",
        "layers": table.get("unmask_layers", ()),
        "several": table.get("unmask_heads", {}),
        "decoder": table.get("unmask_decoder"),
    }
    return _checked(HeadsConfig, own, HEADS_KEYS, path)


def _answer(table: Mapping[str, Any], count: int, path: Path) -> Answer:
    """What the labels of a text are: as the folder says, or a number where there is but one."""
    said = table.get("problem_type")
    if said is None:
        return "number" if count == 1 else "one"
    return _known("problem_type", said, PROBLEMS, path)


def _label_names(table: Mapping[str, Any], shape: tuple[int, ...], path: Path) -> tuple[str, ...]:
    count, names = shape[0], table.get("id2label")
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(count)}:
        raise FolderError(f"{path}: 'id2label' does not name the labels 0 to {count - 1}.")
    return tuple(str(names[str(i)]) for i in range(count))


assert set(ACTIVATIONS.values()) == set(get_args(Activation))
