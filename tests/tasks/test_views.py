"""Answers as people look at them: each built-in task's view, by hand."""

import json

import pytest
from pydantic import TypeAdapter, ValidationError

from unmask.data.labelled.columns import Sample
from unmask.data.labelled.conll import sentence_of
from unmask.data.labelled.parallel import Pair
from unmask.data.labelled.squad import Question
from unmask.system.plugins import find_class
from unmask.tasks import TASKS
from unmask.tasks.classify import Classify, ClassifySettings, Labels
from unmask.tasks.ner import FoundEntities, FoundEntity, Ner, NerSettings
from unmask.tasks.qa import Candidate, Qa, QaAnswer, QaSettings
from unmask.tasks.regress import Number, Regress, RegressSettings
from unmask.tasks.translate import Translate, TranslateSettings, Translation
from unmask.tasks.views import (
    AlignmentView,
    LabelsView,
    MarkedSpan,
    NumberView,
    Ranked,
    RankingView,
    SpansView,
    TextView,
    View,
)

TEXT = Sample("a good film", None, None, "here:1")
PASSAGE = Question("1", "who?", "the book is by Ada .", None, "here:1")
SENTENCE = sentence_of("Ada met Charles in London.", "here:1")
ADA = Candidate("Ada", 15, 18, 4.0, 0.75)

CASES = {
    "one label": (
        Classify(ClassifySettings(), ["bad", "good"]),
        TEXT,
        Labels(("good",), {"good": 0.9, "bad": 0.1}),
        LabelsView(chosen=["good"], shares={"good": 0.9, "bad": 0.1}),
    ),
    "several labels": (
        Classify(ClassifySettings(multi_label=True), ["bad", "good"]),
        TEXT,
        Labels(("good", "bad"), {"good": 0.9, "bad": 0.6}),
        LabelsView(chosen=["good", "bad"], shares={"good": 0.9, "bad": 0.6}),
    ),
    "no label": (
        Classify(ClassifySettings(multi_label=True), ["bad", "good"]),
        TEXT,
        Labels((), {"good": 0.4, "bad": 0.1}),
        LabelsView(chosen=[], shares={"good": 0.4, "bad": 0.1}),
    ),
    "a number": (Regress(RegressSettings()), TEXT, Number(-2.5), NumberView(value=-2.5)),
    "an answer": (
        Qa(QaSettings()),
        PASSAGE,
        QaAnswer("Ada", 15, 18, 0.75, -3.0, (ADA,)),
        SpansView(
            text="the book is by Ada .",
            spans=[MarkedSpan(start=15, end=18, label="answer", share=0.75)],
        ),
    ),
    "no answer": (
        Qa(QaSettings(unanswerable=True)),
        PASSAGE,
        QaAnswer("", -1, -1, 0.9, 3.0, (ADA,)),
        SpansView(text="the book is by Ada .", spans=[], note="The passage does not answer it."),
    ),
    "names": (
        Ner(NerSettings(), ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]),
        SENTENCE,
        FoundEntities(
            (FoundEntity("PER", "Ada", 0, 3, 0.9), FoundEntity("LOC", "London", 19, 25, 0.8)),
            ("B-PER", "O", "O", "O", "B-LOC", "O"),
        ),
        SpansView(
            text="Ada met Charles in London.",
            spans=[
                MarkedSpan(start=0, end=3, label="PER", share=0.9),
                MarkedSpan(start=19, end=25, label="LOC", share=0.8),
            ],
        ),
    ),
    "no names": (
        Ner(NerSettings(), ["O", "B-PER", "I-PER"]),
        SENTENCE,
        FoundEntities((), ("O",) * 6),
        SpansView(text="Ada met Charles in London.", spans=[]),
    ),
    "a translation": (
        Translate(TranslateSettings()),
        Pair("hund", None, "here:1"),
        Translation("a dog", -0.25, (7, 8)),
        TextView(text="a dog", score=-0.25),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_answer_as_a_person_looks_at_it(case):
    task, record, answer, expected = CASES[case]
    assert task.view(record, answer) == expected


def test_every_task_has_a_case():
    assert {case[0].name for case in CASES.values()} == set(TASKS)
    assert {type(case[0]) for case in CASES.values()} == {
        find_class("task", TASKS, n) for n in TASKS
    }


@pytest.mark.parametrize("case", CASES)
def test_a_marked_stretch_is_where_the_answer_stands(case):
    task, record, answer, _ = CASES[case]
    view = task.view(record, answer)
    found = {"qa": ["Ada"], "ner": ["Ada", "London"]}.get(task.name, [])
    if isinstance(view, SpansView) and view.spans:
        assert [view.text[span.start : span.end] for span in view.spans] == found


OTHERS = [
    RankingView(items=[Ranked(text="first", score=2.0), Ranked(text="second", score=1.0)]),
    TextView(
        text="a dog",
        alignment=AlignmentView(source=["ein", "hund"], target=["dog"], weights=[[0.25, 0.75]]),
    ),
]


@pytest.mark.parametrize("view", [*(case[-1] for case in CASES.values()), *OTHERS])
def test_a_view_is_known_again_by_its_kind_after_a_journey_as_json(view):
    sent = json.loads(view.model_dump_json())
    again = TypeAdapter(View).validate_python(sent)
    assert again == view
    assert type(again) is type(view)


def test_a_kind_that_nobody_can_draw_is_no_view():
    with pytest.raises(ValidationError, match="'labels', 'spans', 'text', 'number', 'ranking'"):
        TypeAdapter(View).validate_python({"kind": "picture", "text": "x"})
    with pytest.raises(ValidationError, match="extra"):
        TypeAdapter(View).validate_python({"kind": "number", "value": 1.0, "unit": "m"})
