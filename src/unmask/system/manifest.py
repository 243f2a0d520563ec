"""Table <-> JSON file that verifies itself: one field is the sha256 of all the others."""

import hashlib
import json
from pathlib import Path
from typing import Any

from unmask.system.errors import FolderError
from unmask.system.settings import JSON_LIMIT, read_json

MODEL_MANIFEST = "unmask.json"  # in the folder of a model
MODEL_LIMIT = 2**24  # bytes of the manifest and of config.json, which list every label


def with_digest(table: dict[str, Any]) -> bytes:
    """Serialize a table together with its own digest."""
    return _text({**table, "sha256": _digest(table)})


def read_with_digest(path: Path, *, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read a table, and raise an error if any byte was changed."""
    table = read_json(path, limit=limit)
    # The digest covers the values; the comparison of bytes also covers spaces and order.
    if table.get("sha256") != _digest(table) or path.read_bytes() != _text(table):
        raise FolderError(f"{path}: was changed since it was written (its sha256 does not match).")
    return table


def _text(table: dict[str, Any]) -> bytes:
    text = json.dumps(table, indent=2, ensure_ascii=False) + "\n"
    # A name with a lone surrogate cannot be UTF-8; its replacement is how JSON spells it.
    return text.encode("utf-8", "backslashreplace")


def _digest(table: dict[str, Any]) -> str:
    fields = {key: value for key, value in table.items() if key != "sha256"}
    # Sorted, so that the digest does not depend on the order of the keys.
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
