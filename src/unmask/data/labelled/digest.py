"""Records -> a sha256, by which a run recognises its labelled data, also in later versions."""

import hashlib
from collections.abc import Iterable
from dataclasses import fields, is_dataclass

from unmask.data.labelled.columns import Sample
from unmask.data.labelled.conll import Entity, Sentence
from unmask.data.labelled.parallel import Pair
from unmask.data.labelled.squad import Question, Span

# The fields that a data set's digest is made of. Runs store the digest, so this table must not
# change: a field that a class gains later is not part of it.
DIGESTED: dict[type, tuple[str, ...]] = {
    Sample: ("text", "second", "label"),
    Question: ("id", "question", "context", "answers"),
    Span: ("text", "start"),
    Sentence: ("text", "words", "entities", "document"),
    Entity: ("start", "end", "label"),
    Pair: ("source", "target"),
}


def digest_of(records: Iterable[object]) -> str:
    """Return a sha256 of records, which does not depend on where their files are."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(repr(_plain(record)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _plain(value: object) -> object:
    """Turn a record into tables and tuples of the fields that count; other values stay."""
    if isinstance(value, tuple | list):
        return type(value)(_plain(item) for item in value)
    if not is_dataclass(value):
        return value
    names = DIGESTED.get(type(value))
    if names is None:  # a plugin's record
        names = tuple(field.name for field in fields(value) if field.name != "where")
    return {name: _plain(getattr(value, name)) for name in names}
