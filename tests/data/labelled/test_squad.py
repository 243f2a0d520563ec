"""Questions: SQuAD's files and lines of objects, every answer at its stated position."""

import json

import pytest

from unmask.data.labelled.columns import Columns
from unmask.data.labelled.squad import read_questions
from unmask.data.read.lines import REFUSE
from unmask.system.errors import DataError

FILES = {
    "train-v1.1-36-articles.json": (7566, 0),
    "dev-v1.1-12-articles.json": (3004, 0),
    "dev-v2.0-part.json": (2759, None),
}


@pytest.mark.parametrize("name", list(FILES))
def test_squad_is_read_whole_and_every_answer_is_in_its_passage(shared_data, name):
    count, unanswered = FILES[name]
    questions = list(read_questions(shared_data / "squad" / name))
    assert len(questions) == count
    none = sum(not question.answers for question in questions)
    assert none == unanswered if unanswered is not None else none > 1000
    for question in questions:
        for answer in question.answers:
            assert question.context[answer.start : answer.end] == answer.text


def test_two_ways_of_listing_answers_are_one(tmp_path):
    context = "It began in October 1973."
    lists = {"text": ["October 1973", "1973"], "answer_start": [12, 20]}
    objects = [
        {"text": text, "answer_start": start} for text, start in zip(*lists.values(), strict=True)
    ]
    path = tmp_path / "a.jsonl"
    lines = [
        {"question": "When?", "context": context, "answers": answers}
        for answers in (lists, objects)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = read_questions(path)
    assert first.answers == second.answers
    assert [a.text for a in first.answers] == ["October 1973", "1973"]


def test_fields_may_stand_in_columns_of_other_names(tmp_path):
    path = tmp_path / "a.jsonl"
    answers = [{"text": "1973", "answer_start": 3}]
    line = {"ask": "When?", "passage": "In 1973.", "context": "not this", "found": answers}
    path.write_text(json.dumps(line) + "\n")
    columns = Columns.from_fields({"question": "ask", "context": "passage", "answers": "found"})
    (question,) = read_questions(path, REFUSE, columns)
    assert (question.question, question.context) == ("When?", "In 1973.")
    assert question.answers[0].text == "1973"


def test_squads_format_has_no_columns(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"data": []}')
    says = r"a\.json: SQuAD's format has no columns, so there is no 'x'\. Omit --column id=COLUMN"
    with pytest.raises(DataError, match=says):
        list(read_questions(path, REFUSE, Columns.from_fields({"id": "x"})))


def test_a_question_without_answers_may_be_asked(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "When?", "context": "In 1973."}\n')
    (question,) = read_questions(path)
    assert question.answers is None
    assert question.id == f"{path}:1"
