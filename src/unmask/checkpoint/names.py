"""Our names <-> Hugging Face's: the only file that knows theirs of models and settings.

A network that transformers can compute is written as model type "bert". One that it cannot
(rotary positions, pre-norm, ...) is written as model type "unmask", so that nobody loads it as
something it is not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from unmask.errors import FolderError, SettingsError, unknown
from unmask.model.config import (
    Activation,
    Answer,
    DecoderConfig,
    HeadsConfig,
    LabelKind,
    LabelsConfig,
    ModelConfig,
)
from unmask.settings import Settings, build

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
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
THEIR_ACTIVATIONS: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
}

MODEL, PRETRAINING, MASKED, NEXT = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
)
LABELLED: dict[LabelKind, str] = {
    "text": "BertForSequenceClassification",
    "token": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}
PLAIN = HeadsConfig()
PROBLEMS: dict[Answer, str] = {
    "one": "single_label_classification",
    "several": "multi_label_classification",
    "number": "regression",
}
ARCHITECTURES = (MODEL, PRETRAINING, MASKED, NEXT, *LABELLED.values())


def departures(config: ModelConfig, heads: HeadsConfig = PLAIN) -> list[str]:
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
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
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
            table["problem_type"] = PROBLEMS[heads.label_answer]
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
        return _checked(ModelConfig, own, path)
    for key, ordinary in (("position_embedding_type", "absolute"), ("add_cross_attention", False)):
        if table.get(key, ordinary) != ordinary:
            raise FolderError(f"{path}: '{key}' is {table[key]!r:.40}; BERT's is {ordinary!r}.")
    activation = table.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise FolderError(f"{path}: {unknown('hidden_act', str(activation)[:40], ACTIVATIONS)}")
    own = {"activation": ACTIVATIONS[activation]}
    for ours, theirs in CONFIG_KEYS.items():
        if theirs in table:
            own[ours] = table[theirs]
        elif ours not in OPTIONAL:
            raise FolderError(f"{path}: '{theirs}' is missing; a BERT config has it.")
    return _checked(ModelConfig, own, path)


S = TypeVar("S", bound=Settings)


def _checked(kind: type[S], own: dict[str, Any], path: Path) -> S:
    """Build settings of ours, and put their names into what may be wrong with them."""
    try:
        return build(kind, own, where=str(path))
    except SettingsError as error:
        message = str(error)
        for ours, theirs in {**CONFIG_KEYS, "label_dropout": "classifier_dropout"}.items():
            message = message.replace(f"'{ours}'", f"'{theirs}'")
        raise FolderError(message) from None


def architecture(heads: HeadsConfig) -> str:
    """The class of transformers that has these heads."""
    if heads.labels:
        return LABELLED[heads.labels]
    if heads.tokens:
        return PRETRAINING if heads.pair else MASKED
    return NEXT if heads.pair else MODEL


def our_heads(
    table: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], path: Path
) -> HeadsConfig:
    """The heads that are there: told by the tensors, whose presence cannot lie."""
    named = table.get("architectures")
    kinds = {name: kind for kind, name in LABELLED.items()}
    claimed = named[0] if isinstance(named, list) and named else MODEL
    if claimed not in ARCHITECTURES:
        raise FolderError(f"{path}: {unknown('architecture', str(claimed)[:60], ARCHITECTURES)}")
    labels = kinds.get(claimed)
    layer = "qa_outputs.weight" if labels == "span" else "classifier.weight"
    if labels and layer not in shapes:
        raise FolderError(f"{path}: says {claimed}, but there is no tensor '{layer}'.")
    if labels and not shapes[layer]:
        raise FolderError(
            f"{path}: says {claimed}, but '{layer}' is one number, not a row a label."
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
        "layers": _layers(table, path),
        "several": _several(table, path),
        "decoder": _decoder(table, path),
    }
    return _checked(HeadsConfig, own, path)


def _answer(table: Mapping[str, Any], count: int, path: Path) -> Answer:
    """What the labels of a text are: as the folder says, or a number where there is but one."""
    said = table.get("problem_type")
    if said is None:
        return "number" if count == 1 else "one"
    for ours, theirs in PROBLEMS.items():
        if theirs == said:
            return ours
    raise FolderError(f"{path}: {unknown('problem_type', str(said)[:60], PROBLEMS.values())}")


def _several(table: Mapping[str, Any], path: Path) -> dict[str, LabelsConfig]:
    """The heads of several tasks, where the folder has them."""
    found = table.get("unmask_heads", {})
    if not isinstance(found, dict) or not all(isinstance(own, dict) for own in found.values()):
        raise FolderError(f"{path}: 'unmask_heads' is {found!r:.60}; need a table of heads.")
    return {
        str(name): _checked(
            LabelsConfig, {**own, "label_names": tuple(own.get("label_names", ()))}, path
        )
        for name, own in found.items()
    }


def _decoder(table: Mapping[str, Any], path: Path) -> DecoderConfig | None:
    """What says texts of its own, where the folder has it."""
    found = table.get("unmask_decoder")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise FolderError(f"{path}: 'unmask_decoder' is {found!r:.60}; need a table of settings.")
    try:  # its names are our own
        return build(DecoderConfig, found, where=f"{path} [unmask_decoder]")
    except SettingsError as error:
        raise FolderError(str(error)) from None


def _layers(table: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    """Whose states the labels read, where the folder says so."""
    found = table.get("unmask_layers", [])
    limit = 513  # blocks and embeddings
    if not isinstance(found, list) or not all(type(n) is int and abs(n) <= limit for n in found):
        raise FolderError(f"{path}: 'unmask_layers' is {found!r:.60}; need a list of layers.")
    return tuple(found)


def _label_names(table: Mapping[str, Any], shape: tuple[int, ...], path: Path) -> tuple[str, ...]:
    count, names = shape[0], table.get("id2label")
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(count)}:
        raise FolderError(f"{path}: 'id2label' does not name the labels 0 to {count - 1}.")
    return tuple(str(names[str(i)]) for i in range(count))


assert set(THEIR_ACTIVATIONS) == set(get_args(Activation))
