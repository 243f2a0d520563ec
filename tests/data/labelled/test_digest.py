"""The digest by which a run knows its labelled data again, also in later versions."""

from dataclasses import fields, make_dataclass, replace

import pytest

from unmask.data.labelled import digest
from unmask.data.labelled.columns import Sample
from unmask.data.labelled.conll import Entity, Sentence
from unmask.data.labelled.digest import DIGESTED, digest_of
from unmask.data.labelled.parallel import Pair
from unmask.data.labelled.squad import Question, Span

RECORDS = {
    "samples": [
        Sample("a text", None, ("six", "se'ven"), "a.tsv:1"),
        Sample("é\ud800", "second", 0.5, "a.tsv:2"),
    ],
    "questions": [
        Question("q1", "who?", "john was.", (Span("john", 0),), "a.json:1"),
        Question("q2", "who?", "nobody.", (), "w"),
        Question("q3", "x", "y", None, "w"),
    ],
    "sentences": [
        Sentence("john was", ((0, 4), (5, 8)), (Entity(0, 4, "PER"),), "a:1", 3),
        Sentence("it", ((0, 2),), None, "a:2"),
    ],
    "pairs": [Pair("hund", "dog", "a:1"), Pair("katze", None, "a:2")],
}
# As version 0.1 computed them. Another digest would turn every old run into one of other data.
OF_FIRST_VERSION = {
    "samples": "3013e44226301b90cf5efdcab929d931dab165170bc40b720b3766158d9c6082",
    "questions": "73d5f479f2cbdbd7b3ecf095c12d6bdd200898717e023c627a1c499fb7ab2be9",
    "sentences": "8c496a72d49a828187892dfc6bfa841d1024268dbfd7f3152c283bfc2f120b00",
    "pairs": "82c71a1915412cc828dccd25dbad1892fb254d8e9385541f3bb2de0ab4a434d0",
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_digest_is_the_one_of_the_first_version(kind):
    assert digest_of(RECORDS[kind]) == OF_FIRST_VERSION[kind]


def test_several_kinds_together_too():
    every = [record for some in RECORDS.values() for record in some]
    says = "61ee2e6dc8f4e59ca55c7dc6cc147c201b0ac1ac5418c049e8d72ab2cecb507e"
    assert digest_of(every) == says


@pytest.mark.parametrize("kind", RECORDS)
def test_where_a_record_stands_does_not_matter(kind):
    moved = [replace(record, where="elsewhere") for record in RECORDS[kind]]
    assert digest_of(moved) == OF_FIRST_VERSION[kind]


@pytest.mark.parametrize("kind", DIGESTED, ids=lambda kind: kind.__name__)
def test_a_field_that_a_class_gets_later_does_not_matter(kind, monkeypatch):
    """Also the class of a part: of an answer, of an entity."""
    later = make_dataclass(kind.__name__, [*DIGESTED[kind], "where", "weight"])
    monkeypatch.setattr(digest, "DIGESTED", {**DIGESTED, later: DIGESTED[kind]})

    def updated(value):
        if isinstance(value, tuple):
            return tuple(map(updated, value))
        if type(value) is kind:
            own = {name: getattr(value, name) for name in DIGESTED[kind]}
            return later(**own, where="w", weight=2.0)
        if type(value) in DIGESTED:
            own = {field.name: updated(getattr(value, field.name)) for field in fields(value)}
            return type(value)(**own)
        return value

    changed = {name: [updated(record) for record in some] for name, some in RECORDS.items()}
    assert changed != RECORDS
    assert {name: digest_of(some) for name, some in changed.items()} == OF_FIRST_VERSION


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in DIGESTED.items() for name in names]
)
def test_every_field_that_is_listed_matters(kind, name):
    values = {own.name: f"the {own.name}" for own in fields(kind)}
    one, other = kind(**values), kind(**{**values, name: "another"})
    assert digest_of([one]) != digest_of([other])


def test_records_of_another_class_count_with_all_their_fields():
    own = make_dataclass("Own", ["text", "weight", "where"])
    assert digest_of([own("a", 1, "x")]) == digest_of([own("a", 1, "y")])
    assert digest_of([own("a", 1, "x")]) != digest_of([own("a", 2, "x")])
