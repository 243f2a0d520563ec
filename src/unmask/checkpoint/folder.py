"""Model folder <-> network and tokenizer: Hugging Face's layout, with unmask's manifest.

    config.json  model.safetensors  vocab.txt  tokenizer.json  tokenizer_config.json  README.md
    target/      the tokenizer of a decoder's output, if it is not that of the input
    unmask.json  provenance, recipe, and the sha256 of every other file

Nothing in a folder is ever executed or unpickled, and no memory is allocated for weights before the
files are known to agree with each other.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.checkpoint import names, tensors, weights
from unmask.checkpoint.integrity import CONFIG, publish, require_model_folder, verify
from unmask.model.config import ModelConfig
from unmask.model.network import Network, count_parameters
from unmask.system.errors import FolderError, SettingsError
from unmask.system.manifest import MODEL_LIMIT
from unmask.system.settings import read_json
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokenizer_files import TOKENIZER, VOCAB, read_tokenizer, write_tokenizer

CARD, TARGET = "README.md", "target"


@dataclass(frozen=True)
class Folder:
    """Contents of a model folder; `manifest` is None if unmask did not write the folder."""

    path: Path
    network: Network
    tokenizer: Tokenizer | None
    manifest: dict[str, Any] | None
    target: Tokenizer | None = None  # of the decoder's output

    def needed_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, or raise an error if the folder has none."""
        if self.tokenizer is None:
            raise FolderError(
                f"{self.path}: has neither vocab.txt nor tokenizer.json; a model cannot read text "
                "without its vocabulary. Add one of the two files."
            )
        return self.tokenizer


def load_folder(path: Path, unpickled: Path | None = None) -> Folder:
    """Load a model folder of unmask or Hugging Face, in evaluation mode and fp32.

    `unpickled` is a safetensors file with the weights, for a folder that has only a pickle.
    """
    # The folder may be hostile: the small files are checked first, then the headers of the weights,
    # and memory for the weights is allocated only once everything agrees.
    require_model_folder(path)
    manifest = verify(path)
    table = read_json(path / CONFIG, limit=MODEL_LIMIT)
    encoders = names.our_encoders(table, path / CONFIG)
    entries = weights.survey(path, unpickled)
    sizes = {name: item.entry.shape for name, item in entries.items()}
    _refuse_oversized(encoders, entries, path)
    shape = names.our_shape(encoders, table, sizes, path / CONFIG)
    try:
        network = weights.empty(shape)
    except SettingsError as error:  # such as an encoder and a decoder that do not fit
        raise FolderError(f"{path / CONFIG}: {error}") from None
    slots = tensors.layout(network)
    weights.match(entries, slots, path)
    tokenizer = None
    if (path / VOCAB).exists() or (path / TOKENIZER).exists():
        tokenizer = read_tokenizer(path)
    target = None
    if shape.decoder:
        target = tokenizer if shape.decoder.shared else read_tokenizer(path / TARGET)
    _refuse_other_vocabularies(path, network, tokenizer, target)
    weights.read_into(network, entries, slots)
    return Folder(path, network.eval(), tokenizer, manifest, target)


def save_folder(
    path: Path,
    network: Network,
    tokenizer: Tokenizer,
    *,
    recipe: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    beside: Callable[[Path], None] | None = None,
    needed: int | None = None,
    target: Tokenizer | None = None,
) -> None:
    """Write a model folder, completely or not at all. An existing folder is refused.

    `task` holds the settings that answers depend on. `beside` writes further files into the
    folder. `needed` is its total size in bytes, for the error of a full disk. `target` is the
    tokenizer of a decoder's output.
    """
    _refuse_other_vocabularies(path, network, tokenizer, target)
    about = {"recipe": recipe, "provenance": provenance}
    if task is not None:
        about["task"] = task
    with publish(path, about, needed=needed) as folder:
        write_settings(folder, network, tokenizer)
        decoder = network.shape.decoder
        if target is not None and decoder and not decoder.shared:
            write_tokenizer(target, folder / TARGET)
        card = model_card(path.name, network, (provenance or {}).get("scores"))
        (folder / CARD).write_text(card, encoding="utf-8", newline="\n")
        weights.write(network, folder)
        if beside:
            beside(folder)


def write_settings(folder: Path, network: Network, tokenizer: Tokenizer) -> None:
    """Write config.json and the tokenizer's files, which transformers can read as well."""
    config = network.config
    table = names.their_config(network.shape, tokenizer.vocabulary.pad)
    written = json.dumps(table, indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG).write_text(written, "utf-8", newline="\n")
    write_tokenizer(tokenizer, folder, max_length=config.max_length)


def model_card(name: str, network: Network, scores: dict[str, float] | None = None) -> str:
    """Return the README.md of a model folder, with scores on held-out data if there are any."""
    config, label_head = network.config, network.shape.labels
    unusual = names.differences_from_bert(network.shape)
    architecture = names.architecture(network.shape)
    compatibility = (
        f"transformers cannot compute it ({', '.join(unusual)}); use unmask."
        if unusual
        else f"`transformers.{architecture}.from_pretrained` reads this folder too."
    )
    facts = {
        "layers": config.layers,
        "width": config.width,
        "heads": config.heads,
        "vocabulary": f"{config.vocab_size:,}",
        "maximum length": f"{config.max_length} tokens",
        "parameters": f"{count_parameters(network):,}",
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    labels = f"\nLabels: {', '.join(label_head.names)}\n" if label_head else ""
    if scores:
        score_rows = "\n".join(f"| {metric} | {value:.4f} |" for metric, value in scores.items())
        labels += f"\nScores on held-out data:\n\n| | |\n|---|---|\n{score_rows}\n"
    return (
        f"---\nlibrary_name: transformers\ntags:\n- bert\n- unmask\n---\n\n# {name}\n\n"
        f"A BERT encoder written by unmask. {compatibility}\n\n| | |\n|---|---|\n{rows}\n{labels}\n"
        f"```python\nimport unmask\n\nmodel = unmask.load({name!r})\n```\n\n"
        "`unmask.json` records the recipe, the provenance and the sha256 of every file.\n"
    )


def _refuse_other_vocabularies(
    path: Path, network: Network, tokenizer: Tokenizer | None, target: Tokenizer | None
) -> None:
    """Refuse a tokenizer with more tokens than embeddings, and a target of another size."""
    size, decoder = network.config.vocab_size, network.shape.decoder
    if tokenizer is not None and len(tokenizer.vocabulary) > size:
        raise FolderError(
            f"{path}: the vocabulary has {len(tokenizer.vocabulary):,} tokens, but the model has "
            f"only {size:,} token embeddings. Do they belong to the same model?"
        )
    target_size = 0 if target is None else len(target.vocabulary)
    if decoder and target_size != decoder.vocab_size and not (decoder.shared and target is None):
        raise FolderError(
            f"{path}: the target vocabulary has {target_size:,} tokens, but the decoder has "
            f"{decoder.vocab_size:,}. Do they belong to the same model?"
        )


def _refuse_oversized(
    encoders: Mapping[str, ModelConfig], entries: Mapping[str, weights.Found], path: Path
) -> None:
    """Refuse a config that implies far more parameters than the weight files hold."""
    # Even a network without memory for its weights costs time and memory for each layer. The
    # smallest floating-point type has two bytes, so the files hold at most bytes // 2 numbers.
    implied = sum(map(_least_parameters, encoders.values()))
    stored = sum(item.entry.end - item.entry.begin for item in entries.values()) // 2
    if implied > stored:
        raise FolderError(
            f"{path / CONFIG}: implies {implied:,} parameters, but the weights hold at most "
            f"{stored:,}. Do the two files belong to the same model?"
        )


def _least_parameters(config: ModelConfig) -> int:
    """Return a lower bound for the number of parameters of an encoder."""
    places = config.max_length if config.positions == "learned" else 0
    tokens = 0 if config.borrows else config.vocab_size
    # Matrices of this size: attention has 4, a GRU's gates 3. Layers of a group share them.
    blocks = config.groups * 3 * config.width * config.heads * config.head_width
    return blocks + config.table_width * (tokens + places)
