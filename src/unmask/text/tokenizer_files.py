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
from unmask.text.tokenizer import Casing, Tokenizer, whole_characters
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
    vocab, whole = folder / VOCAB, folder / TOKENIZER
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise FolderError(f"{folder}: {what}; need the folder of a model or of a vocabulary.")
    if not vocab.exists() and not whole.exists():
        raise FolderError(f"{folder}: neither {VOCAB} nor {TOKENIZER} is there; need one of them.")
    if not whole.exists():
        path = folder / TOKENIZER_CONFIG
        config = read_json(path) if path.exists() else {}
        return Tokenizer(Vocabulary.read(vocab), _casing(config, CONFIG_KEYS, path))
    tokenizer = _from_table(read_json(whole, limit=TOKENIZER_LIMIT), whole)
    if vocab.exists() and (listed := Vocabulary.read(vocab)) != tokenizer.vocabulary:
        raise FolderError(
            f"{vocab}: {_first_difference(listed, tokenizer.vocabulary)}; {TOKENIZER} beside it "
            "says otherwise, and only one can be the model's. Remove the wrong one."
        )
    return tokenizer


def tokenizer_files(tokenizer: Tokenizer, *, max_length: int | None = None) -> dict[str, str]:
    """Return the files of a tokenizer, as a table of names and contents."""
    config: dict[str, object] = {"tokenizer_class": "BertTokenizer"}
    config |= {theirs: getattr(tokenizer.casing, ours) for ours, theirs in CONFIG_KEYS.items()}
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
    for ours, theirs in keys.items():
        value = table.get(theirs, False)
        automatic = ours == "strip_accents" and value is None
        if not isinstance(value, bool) and not automatic:
            raise FolderError(f"{path}: {theirs} is {value!r:.60}; need true or false.")
    given: dict[str, Any] = {k: table[theirs] for k, theirs in keys.items() if theirs in table}
    return Casing(**given)


def _from_table(table: Mapping[str, object], path: Path) -> Tokenizer:
    """Build the BERT tokenizer that a tokenizer.json describes, or refuse one of another kind."""
    model = _part(table, "model", "WordPiece", path, default="WordPiece")
    normalizer = _part(table, "normalizer", "BertNormalizer", path)
    _part(table, "pre_tokenizer", "BertPreTokenizer", path)
    ordinary: dict[str, object] = {"unk_token": UNKNOWN, "continuing_subword_prefix": CONTINUATION}
    ordinary |= {"max_input_chars_per_word": LONGEST_WORD, "clean_text": True}
    for key, need in ordinary.items():
        part = normalizer if key == "clean_text" else model
        if part.get(key, need) != need:
            raise FolderError(f"{path}: {key} is {part[key]!r:.60}; BERT's is {need!r}.")
    vocabulary = _vocabulary(model, table.get("added_tokens"), path)
    return Tokenizer(vocabulary, _casing(normalizer, NORMALIZER_KEYS, path))


def _part(
    table: Mapping[str, object], name: str, need: str, path: Path, default: str | None = None
) -> dict[str, object]:
    part = table.get(name)
    kind: object = part.get("type", default) if isinstance(part, dict) else part
    if not isinstance(part, dict) or kind != need:
        raise FolderError(
            f"{path}: its {name} is {kind!r:.60}, not BERT's {need}; unmask reads only BERT "
            f"tokenizers. Give a BERT model, or its {VOCAB} alone."
        )
    return part


def _vocabulary(model: Mapping[str, object], added: object, path: Path) -> Vocabulary:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict):
        raise FolderError(f"{path}: model.vocab is missing; need a table of tokens and their ids.")
    ids: dict[str, object] = dict(vocab)
    tokens: list[object] = added if isinstance(added, list) else []
    for token in tokens:
        table: dict[str, object] = token if isinstance(token, dict) else {}
        content = table.get("content")
        if not isinstance(content, str) or content not in SPECIALS:
            raise FolderError(
                f"{path}: the added token {str(content)[:60]!r} is none of {', '.join(SPECIALS)}; "
                "unmask reads vocabularies without words of their own rule. Take it out."
            )
        ids.setdefault(content, table.get("id"))
    # `type` and not isinstance, because True and False are ints too.
    numbers = {token: i for token, i in ids.items() if type(i) is int}
    if set(numbers.values()) != set(range(len(ids))):
        raise FolderError(
            f"{path}: the ids of {len(ids)} tokens are not 0 to {len(ids) - 1}, each once."
        )
    for token in ids:
        # The tokenizer will be written as vocab.txt, and read from it the next time.
        if "\n" in token or token.endswith("\r") or whole_characters(token) != token:
            raise FolderError(f"{path}: the token {token[:60]!r} could not be a line of {VOCAB}.")
    return Vocabulary(sorted(numbers, key=lambda token: numbers[token]), where=str(path))


def _first_difference(one: Vocabulary, other: Vocabulary) -> str:
    for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if a != b:
            return f"id {i} is '{a}' here and '{b}' there"
    return f"{len(one)} tokens here and {len(other)} there"
