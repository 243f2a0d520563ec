"""Records -> a sha256, by which a run knows its labelled data again, also in later versions."""

import hashlib
from collections.abc import Iterable
from dataclasses import fields, is_dataclass

from unmask.data.labelled.columns import Sample
from unmask.data.labelled.conll import Entity, Sentence
from unmask.data.labelled.parallel import Pair
from unmask.data.labelled.squad import Question, Span

# The fields of records that make up the digest of a data set. Runs keep that digest, so these stay
# as they are: a field that a class gets later is not part of it.
DIGESTED: dict[type, tuple[str, ...]] = {
    Sample: ("text", "second", "label"),
    Question: ("id", "question", "context", "answers"),
    Span: ("text", "start"),
    Sentence: ("text", "words", "entities", "document"),
    Entity: ("start", "end", "label"),
    Pair: ("source", "target"),
}


def digest_of(records: Iterable[object]) -> str:
    """Return a sha256 of records, wherever their files lie."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(repr(_plain(record)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _plain(value: object) -> object:
    """Turn a record into tables and tuples of the fields that count; anything else stays."""
    if isinstance(value, tuple | list):
        return type(value)(_plain(part) for part in value)
    if not is_dataclass(value):
        return value
    names = DIGESTED.get(type(value))
    if names is None:  # a record of somebody else's
        names = tuple(own.name for own in fields(value) if own.name != "where")
    return {name: _plain(getattr(value, name)) for name in names}
