"""Tokenizer <-> disk: vocab.txt, tokenizer.json and tokenizer_config.json in Hugging Face's format.

A tokenizer.json is never passed to the engine: it may contain regular expressions, padding to 128
tokens or another algorithm. Only what makes up a BERT tokenizer is read from it, and the tokenizer
is built from that.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.system.errors import FolderError
from unmask.system.settings import read_json
from unmask.text.tokenizer import Casing, Tokenizer, replace_surrogates
from unmask.text.vocabulary import CONTINUATION, SPECIALS, UNKNOWN, Vocabulary
from unmask.text.wordpiece import LONGEST_WORD

VOCAB, TOKENIZER, TOKENIZER_CONFIG = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
TOKENIZER_LIMIT = 16 * 2**20  # bytes of tokenizer.json
CONFIG_KEYS = {  # field of Casing -> key in tokenizer_config.json
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "chinese_apart": "tokenize_chinese_chars",
}
NORMALIZER_KEYS = {  # field of Casing -> key in the normalizer of tokenizer.json
    "lowercase": "lowercase",
    "strip_accents": "strip_accents",
    "chinese_apart": "handle_chinese_chars",
}


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read a folder's tokenizer; if vocab.txt and tokenizer.json both exist, they must agree."""
    vocab_path, json_path = folder / VOCAB, folder / TOKENIZER
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "no such folder"
        raise FolderError(f"{folder}: {problem}; need a model folder or a vocabulary folder.")
    if not vocab_path.exists() and not json_path.exists():
        raise FolderError(f"{folder}: contains neither {VOCAB} nor {TOKENIZER}; need one of them.")
    if not json_path.exists():
        config_path = folder / TOKENIZER_CONFIG
        config = read_json(config_path) if config_path.exists() else {}
        return Tokenizer(Vocabulary.read(vocab_path), _casing(config, CONFIG_KEYS, config_path))
    tokenizer = _from_table(read_json(json_path, limit=TOKENIZER_LIMIT), json_path)
    if vocab_path.exists() and (listed := Vocabulary.read(vocab_path)) != tokenizer.vocabulary:
        raise FolderError(
            f"{vocab_path}: disagrees with {TOKENIZER} in the same folder: "
            f"{_first_difference(listed, tokenizer.vocabulary)}; only one of the files can be the "
            "model's. Remove the wrong one."
        )
    return tokenizer


def tokenizer_files(tokenizer: Tokenizer, *, max_length: int | None = None) -> dict[str, str]:
    """Return the files of a tokenizer, as a table of names and contents."""
    config: dict[str, object] = {"tokenizer_class": "BertTokenizer"}
    config |= {key: getattr(tokenizer.casing, field) for field, key in CONFIG_KEYS.items()}
    if max_length is not None:
        config["model_max_length"] = max_length
    specials = {f"{token[1:-1].lower()}_token": token for token in SPECIALS}
    return {
        VOCAB: tokenizer.vocabulary.text(),
        TOKENIZER: tokenizer.engine.to_str(pretty=True) + "\n",
        TOKENIZER_CONFIG: json.dumps(config | specials, indent=2) + "\n",
        SPECIAL_MAP: json.dumps(specials, indent=2) + "\n",
    }


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int | None = None) -> None:
    """Write the files of a tokenizer into a folder that is not published yet."""
    folder.mkdir(exist_ok=True)
    for name, text in tokenizer_files(tokenizer, max_length=max_length).items():
        # As bytes: text mode would write \r\n on Windows, and digests would differ between systems.
        (folder / name).write_bytes(text.encode("utf-8"))


def _casing(table: Mapping[str, object], keys: Mapping[str, str], path: Path) -> Casing:
    """Read a casing under the keys of a file; a missing key means BERT's default."""
    for field, key in keys.items():
        value = table.get(key, False)
        automatic = field == "strip_accents" and value is None
        if not isinstance(value, bool) and not automatic:
            raise FolderError(f"{path}: {key} is {value!r:.60}; need true or false.")
    values: dict[str, Any] = {field: table[key] for field, key in keys.items() if key in table}
    return Casing(**values)


def _from_table(table: Mapping[str, object], path: Path) -> Tokenizer:
    """Build the BERT tokenizer that a tokenizer.json describes, or refuse one of another kind."""
    model = _part(table, "model", "WordPiece", path, default="WordPiece")
    normalizer = _part(table, "normalizer", "BertNormalizer", path)
    _part(table, "pre_tokenizer", "BertPreTokenizer", path)
    expected: dict[str, object] = {"unk_token": UNKNOWN, "continuing_subword_prefix": CONTINUATION}
    expected |= {"max_input_chars_per_word": LONGEST_WORD, "clean_text": True}
    for key, value in expected.items():
        part = normalizer if key == "clean_text" else model
        if part.get(key, value) != value:
            raise FolderError(
                f"{path}: {key} is {part[key]!r:.60}; unmask reads only BERT tokenizers, which "
                f"have {value!r}."
            )
    vocabulary = _vocabulary(model, table.get("added_tokens"), path)
    return Tokenizer(vocabulary, _casing(normalizer, NORMALIZER_KEYS, path))


def _part(
    table: Mapping[str, object], name: str, expected: str, path: Path, default: str | None = None
) -> dict[str, object]:
    part = table.get(name)
    kind: object = part.get("type", default) if isinstance(part, dict) else part
    if not isinstance(part, dict) or kind != expected:
        raise FolderError(
            f"{path}: its {name} is {kind!r:.60}, not {expected}; unmask reads only BERT "
            f"tokenizers. Give a BERT model, or its {VOCAB} alone."
        )
    return part


def _vocabulary(model: Mapping[str, object], added: object, path: Path) -> Vocabulary:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict):
        raise FolderError(
            f"{path}: model.vocab is missing; need an object with the id of each token."
        )
    ids: dict[str, object] = dict(vocab)
    added_tokens: list[object] = added if isinstance(added, list) else []
    for added_token in added_tokens:
        table: dict[str, object] = added_token if isinstance(added_token, dict) else {}
        content = table.get("content")
        if not isinstance(content, str) or content not in SPECIALS:
            raise FolderError(
                f"{path}: the added token {str(content)[:60]!r} is not one of "
                f"{', '.join(SPECIALS)}; unmask supports no other added tokens. Remove it."
            )
        ids.setdefault(content, table.get("id"))
    # `type` and not isinstance, because True and False are ints too.
    numbers = {token: i for token, i in ids.items() if type(i) is int}
    if set(numbers.values()) != set(range(len(ids))):
        raise FolderError(
            f"{path}: the ids of {len(ids)} tokens are wrong; need each number from 0 to "
            f"{len(ids) - 1} exactly once."
        )
    for token in ids:
        # The tokenizer will be written as vocab.txt, and read from it the next time.
        if "\n" in token or token.endswith("\r") or replace_surrogates(token) != token:
            raise FolderError(
                f"{path}: the token {token[:60]!r} cannot be written as a line of {VOCAB}; need "
                "tokens without line breaks and lone surrogates."
            )
    return Vocabulary(sorted(numbers, key=lambda token: numbers[token]), where=str(path))


def _first_difference(vocabulary: Vocabulary, other: Vocabulary) -> str:
    pairs = zip(vocabulary.tokens, other.tokens, strict=False)
    for i, (token, other_token) in enumerate(pairs):
        if token != other_token:
            return f"id {i} is '{token}' in {VOCAB} and '{other_token}' in {TOKENIZER}"
    return f"{len(vocabulary)} tokens in {VOCAB} and {len(other)} in {TOKENIZER}"
