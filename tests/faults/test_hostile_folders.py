"""Model folders made by an enemy or by an accident: refused by name, at once, and nothing is run.

Each case spoils a small good folder. A table says which file the refusal must name and a part of
the reason that it must give.
"""

import contextlib
import json

import pytest

from tests.faults.cases_settings import CONFIGS, SEALED, TEXTS
from tests.faults.cases_weights import HEADERS, INDICES, TENSORS
from tests.faults.spoil import *
from unmask.checkpoint.folder import load_folder
from unmask.system.errors import UserError

TABLES = {
    "header": HEADERS,
    "tensor": TENSORS,
    "index": INDICES,
    "config": CONFIGS,
    "text": TEXTS,
    "manifest": SEALED,
}
CASES = [
    pytest.param(*case, id=f"{group}-{name}")
    for group, table in TABLES.items()
    for name, case in table.items()
]


@pytest.mark.timeout(8, func_only=True)
@pytest.mark.parametrize(("spoil", "file", "reason"), CASES)
def test_a_hostile_folder_is_refused_by_name_at_once_in_little_memory(
    request, sealed, spoil, file, reason
):
    if "manifest-" not in request.node.callspec.id:
        (sealed / MANIFEST).unlink()
    spoil(sealed)
    with bounded():
        message = refusal(lambda: load_folder(sealed), sealed, within=SECONDS)
    assert file in message
    assert reason in message


ODD_VALUES = [None, True, -1, 1.5, "\ud800", [], [[]], {"a": 1}]
# file: (what takes its place if it is there, the parts of it that are read)
READ = {
    CONFIG: (None, None),
    TOKENIZER: (VOCAB, ("added_tokens", "normalizer", "pre_tokenizer", "model")),
    "tokenizer_config.json": (TOKENIZER, None),
    WEIGHTS: (None, (ENTRY, "__metadata__")),
    MANIFEST: (None, None),
}


def places(node, at=()):
    """The places in a JSON value, as the keys that lead to them, three deep."""
    for key in list(node)[:6] if at else node:
        child = node[key]
        yield (*at, key)
        if isinstance(child, list) and child:
            yield (*at, key, 0)
        elif isinstance(child, dict) and len(at) < 2:
            yield from places(child, (*at, key))


@pytest.mark.parametrize("name", READ)
def test_any_value_of_another_kind_is_harmless_or_refused(sealed, name):
    instead, parts = READ[name]
    for other in {MANIFEST, instead} - {name, None}:
        (sealed / other).unlink()
    raw = (sealed / name).read_bytes()
    table, body = split(raw) if name == WEIGHTS else (json.loads(raw), b"")
    for *way, last in [at for at in places(table) if parts is None or at[0] in parts]:
        node = table
        for key in way:
            node = node[key]
        original = node[last]
        for value in ODD_VALUES:
            node[last] = value
            text = json.dumps(table).encode()
            (sealed / name).write_bytes(as_file(text, body) if name == WEIGHTS else text)
            if name == MANIFEST:
                manifest(lambda _: None)(sealed)
            with contextlib.suppress(UserError):
                load_folder(sealed)
        node[last] = original
