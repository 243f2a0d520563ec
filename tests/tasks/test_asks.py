"""Questions of users: from lines, from rows of tables, and from objects that a program sends."""

import json
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import Field, ValidationError

from unmask.data.labelled.columns import Columns
from unmask.data.read.lines import REFUSE, ErrorPolicy
from unmask.system.errors import DataError, SettingsError
from unmask.system.plugins import find_class
from unmask.tasks import TASKS
from unmask.tasks.asks import Ask, AskText, rows
from unmask.tasks.ner import AskSentence
from unmask.tasks.qa import AskPassage
from unmask.tasks.translate import AskTranslation


class Keeping(ErrorPolicy):
    """Writes down what is bad, and what stands there."""

    def __init__(self):
        self.found = []

    def bad(self, error, raw):
        self.found.append((str(error), raw))


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        (AskText, "a good film", AskText(text="a good film")),
        (AskText, "  a film ", AskText(text="  a film ")),  # a text is what it is
        (AskText, "[1] is a number", AskText(text="[1] is a number")),
        (AskText, '"quoted"', AskText(text='"quoted"')),
        (AskText, '{"text": "a", "second": "b"}', AskText(text="a", second="b")),
        (AskText, '  {"text": "a"}', AskText(text="a")),
        (AskText, '{"text": "a", "second": null}', AskText(text="a")),
        (AskText, '{"text": "a", "label": "good", "id": 7}', AskText(text="a")),
        (AskSentence, "ada met charles", AskSentence(text="ada met charles")),
        (
            AskPassage,
            '{"question": "who?", "context": "ada.", "id": "7"}',
            AskPassage(question="who?", context="ada.", id="7"),
        ),
        (AskTranslation, "hund", AskTranslation(text="hund", beams=1, penalty=1.0)),
        (AskTranslation, '{"text": "hund", "beams": 4}', AskTranslation(text="hund", beams=4)),
    ],
)
def test_a_line_is_an_object_or_else_a_text(kind, line, expected):
    assert kind.of_line(line, "here:1") == expected


def test_a_blank_line_is_an_empty_text_where_a_text_is_all_there_is():
    assert AskText.of_line("", "here:1") == AskText(text="")
    assert AskText.of_line("  ", "here:1") == AskText(text="  ")


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        (
            AskPassage,
            "who?",
            "'who?' is not a JSON object; expected a JSON object with question and con",
        ),
        (AskPassage, "  ", "the line is blank; expected a JSON object with question and context."),
        (AskPassage, '{"question": "who?"}', "'context' is None; expected a text."),
        (AskPassage, '{"question": " ", "context": "a"}', "'question' is ' '; expected a text"),
        (AskPassage, '{"question": "a", "context": "b", "id": [4]}', "'id"),
        (AskText, '{"text": 5}', "'text' is 5; expected a text."),
        (AskText, '{"text": ["a"]}', "'text' is ['a']; expected a text."),
        (AskText, '{"text": "a", "second": {}}', "'second' is {}; expected a text."),
        (AskText, '{"second": "b"}', "'text' is None; expected a text."),
        (AskText, "{}", "'text' is None; expected a text."),
        (AskText, "{a brace", "double quotes (column 2). Fix it."),
        (AskText, '{"text": "a", "text": "b"}', "not valid JSON: the key 'text' is given twice"),
        (AskText, '{"text": "a\\ud800"}', "half a surrogate pair (\\ud800 to \\udfff); need"),
        (
            AskText,
            '{"text": "a", "second": "\\udc00b"}',
            "half a surrogate pair (\\ud800 to \\udfff); need both halves.",
        ),
        pytest.param(
            AskText,
            "a\ud800",
            "half a surrogate pair (\\ud800 to \\udfff); need both halves.",
            id="half",
        ),
        (AskTranslation, '{"text": "a", "beams": 0}', "'beams' is 0; input should be greater than"),
        (AskTranslation, '{"text": "a", "beams": 65}', "'beams' is 65; input should be less than"),
        (AskTranslation, '{"text": "a", "penalty": "x"}', "'penalty' is 'x'; input should be a"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(kind, line, message):
    with pytest.raises(DataError) as error:
        kind.of_line(line, "here:3")
    assert str(error.value).startswith("here:3: ")
    assert message in str(error.value)


def test_a_long_value_is_not_repeated_whole():
    with pytest.raises(DataError) as error:
        AskText.of_line('{"text": ' + "9" * 1000 + "}", "here:1")
    assert len(str(error.value)) < 150


def test_a_whole_character_that_json_spells_in_halves_is_one():
    assert AskText.of_line('{"text": "\\ud83d\\ude00"}', "here:1").text == "\U0001f600"


def test_a_program_that_sends_half_a_character_gets_an_answer_all_the_same():
    asked = AskText(text="a\ud800b", second="\udfff")
    assert (asked.text, asked.second) == ("a\ufffdb", "\ufffd")


def test_columns_of_other_names_are_read_by_these():
    columns = Columns(text="review", second="answer")
    table = {"review": "x", "text": "not this", "answer": "y"}
    assert AskText.of_table(table, "here:1", columns) == AskText(text="x", second="y")
    with pytest.raises(DataError, match="here:1: 'review' is None; expected a text"):
        AskText.of_table({"text": "x"}, "here:1", columns)
    with pytest.raises(DataError, match="here:1: 'review' is 3; expected a text"):
        AskText.of_table({"review": 3}, "here:1", columns)


class AskTopic(Ask):
    """A question with a field and options of its own."""

    text: str
    topic: Annotated[str, Field(description="What to look for.", examples=["animals"])]
    most: Annotated[int, Field(ge=1, le=9, description="How many at most.")] = 3
    style: Literal["short", "long"] = "short"
    since: int | float | None = None
    exact: bool

    options = frozenset({"most", "style"})


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_the_column_of_any_field_can_be_named(tmp_path, ending):
    path, columns = (
        tmp_path / f"asked.{ending}",
        Columns.from_fields({"topic": "subject", "text": "body"}),
    )
    cells = {"body": "a cat", "text": "not this", "subject": "animals", "exact": "yes"}
    lines = (
        [json.dumps(cells)] if ending == "jsonl" else [",".join(cells), ",".join(cells.values())]
    )
    path.write_text("\n".join(lines) + "\n")
    ((asked, _),) = rows(AskTopic, path, columns, REFUSE)
    assert (asked.text, asked.topic, asked.exact) == ("a cat", "animals", True)


def test_a_column_that_a_table_does_not_have_is_refused_and_a_number_is_one(tmp_path):
    path = tmp_path / "asked.csv"
    path.write_text("text,subject,exact\na cat,animals,no\n")
    with pytest.raises(DataError) as error:
        list(rows(AskTopic, path, Columns.from_fields({"topic": "subjct"}), REFUSE))
    assert "unknown column 'subjct'; did you mean 'subject'?" in str(error.value)
    assert str(error.value).endswith("Choose one with --column topic=COLUMN.")
    ((asked, _),) = rows(AskTopic, path, Columns.from_fields({"topic": "2"}), REFUSE)
    assert asked.topic == "animals"


def test_a_field_that_is_missing_is_named_with_those_that_exist():
    with pytest.raises(DataError) as error:
        AskTopic.of_line('{"text": "a cat"}', "here:1")
    assert str(error.value) == (
        "here:1: 'topic' is None; expected a text. The fields are text, topic, most (optional),"
        " style (optional), since (optional), exact; --column FIELD=COLUMN renames one."
    )


@pytest.mark.parametrize(
    ("labelled", "name", "says"),
    [
        (False, "topc", "--column topc=COLUMN: unknown field 'topc'; did you mean 'topic'?"),
        (False, "label", "--label: unknown field 'label'; .* are exact, most, since, style, text"),
        (True, "most", "unknown field 'most'; .* The fields are exact, label, since, text, topic"),
    ],
)
def test_a_column_of_a_field_that_does_not_exist_is_refused(labelled, name, says):
    with pytest.raises(SettingsError, match=says):
        AskTopic.check_columns(Columns.from_fields({name: "x"}), labelled=labelled)


def test_columns_of_fields_that_exist_are_accepted():
    AskTopic.check_columns(Columns.from_fields({"topic": "x", "most": "y"}), labelled=False)
    AskTopic.check_columns(Columns.from_fields({"topic": "x", "label": "y"}), labelled=True)
    AskTranslation.check_columns(Columns("de", "en"), labelled=True)
    AskPassage.check_columns(Columns.from_fields({"answers": "x"}), labelled=True)


def test_fields_are_described_in_words():
    assert AskTopic.described() == {
        "text": "text, required.",
        "topic": "text, required. What to look for.",
        "most": "whole number from 1 up to 9, default 3. How many at most.",
        "style": "one of short, long, default short.",
        "since": "whole number or number, optional.",
        "exact": "true or false, required.",
    }


def test_an_example_is_a_question_with_the_fields_that_are_needed():
    assert AskTopic.example() == {"text": "...", "topic": "animals", "exact": True}
    assert AskTopic.of_line(json.dumps(AskTopic.example()), "here:1").topic == "animals"


@pytest.mark.parametrize("name", TASKS)
def test_every_field_of_a_built_in_task_has_a_description_and_its_example_is_a_question(name):
    ask = find_class("task", TASKS, name).Ask
    for field, schema in ask.model_json_schema()["properties"].items():
        assert schema.get("description", "").endswith("."), field
    ask.of_line(json.dumps(ask.example()), "here:1")


def test_nothing_in_a_question_is_ignored_or_changed_later():
    with pytest.raises(ValidationError, match="extra"):
        AskText(text="a", label="good")
    with pytest.raises(ValidationError, match="frozen"):
        AskText(text="a").text = "b"


def test_what_is_needed_is_what_has_no_default():
    assert AskText.needed() == AskSentence.needed() == AskTranslation.needed() == ["text"]
    assert AskPassage.needed() == ["question", "context"]


class AskHot(Ask):
    """A question with two options."""

    text: str
    warmth: Annotated[float, Field(ge=0.0)] = 1.0
    aloud: bool = False

    options = frozenset({"warmth", "aloud"})


def test_questions_go_together_that_agree_in_their_options():
    assert AskHot(text="a").chosen() == (("aloud", False), ("warmth", 1.0))
    assert AskHot(text="a").chosen() == AskHot(text="b").chosen()
    assert AskHot(text="a").chosen() != AskHot(text="a", warmth=2.0).chosen()
    translation = AskTranslation(text="a", beams=3)
    assert translation.chosen() == (("alignment", False), ("beams", 3), ("penalty", 1.0))
    assert AskText(text="a").chosen() == AskText(text="b", second="c").chosen() == ()
    assert len({AskHot(text=t).chosen() for t in "abc"}) == 1, "they are keys of tables"


TABLES = {
    "asked.csv": 'text,id,second\n"one, two",1,\nthree,2,four\n',
    "asked.tsv": "id\ttext\tsecond\n1\tone, two\t\n2\tthree\tfour\n",
    "asked.jsonl": '{"text": "one, two", "id": 1}\n{"text": "three", "second": "four"}\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_a_table_is_a_question_with_its_place(tmp_path, name):
    path = tmp_path / name
    path.write_text(TABLES[name])
    (one, first), (two, second) = rows(AskText, path, Columns(), REFUSE)
    assert (one.text, one.second or "") == ("one, two", "")
    assert two == AskText(text="three", second="four")
    begin = 1 if name.endswith("jsonl") else 2
    assert [first, second] == [f"{path}:{begin}", f"{path}:{begin + 1}"]


def test_so_is_a_row_of_a_typed_table(tmp_path):
    path = tmp_path / "asked.parquet"
    pq.write_table(pa.table({"text": ["one", "two"], "beams": [2, None]}), path)
    (one, first), (two, _) = rows(AskTranslation, path, Columns(), REFUSE)
    assert (one.beams, two.beams) == (2, 1)
    assert first == f"{path}: row 1"


def test_a_table_without_a_header_has_columns_by_number(tmp_path):
    path = tmp_path / "asked.csv"
    path.write_text("7,one\n8,two\n")
    found = list(rows(AskText, path, Columns(text="2", header=False), REFUSE))
    assert [ask.text for ask, _ in found] == ["one", "two"]
    assert found[0][1] == f"{path}:1"


def test_a_bad_row_goes_to_the_watcher_and_the_others_are_asked(tmp_path):
    path, watcher = tmp_path / "asked.jsonl", Keeping()
    lines = ['{"text": "one"}', '{"text": 2}', '{"second": "x"}', '{"text": "four"}']
    path.write_text("\n".join(lines) + "\n")
    found = [(ask.text, where) for ask, where in rows(AskText, path, Columns(), watcher)]
    assert found == [("one", f"{path}:1"), ("four", f"{path}:4")]
    assert watcher.found == [
        (f"{path}:2: 'text' is 2; expected a text.", lines[1]),
        (
            f"{path}:3: 'text' is None; expected a text. The fields are text, second "
            "(optional); --column FIELD=COLUMN renames one.",
            lines[2],
        ),
    ]
    with pytest.raises(DataError, match=r":2: 'text' is 2; expected a text"):
        list(rows(AskText, path, Columns(), REFUSE))


def test_a_row_that_is_half_a_character_is_a_bad_one(tmp_path):
    path, watcher = tmp_path / "asked.jsonl", Keeping()
    path.write_text('{"text": "\\ud800"}\n{"text": "two"}\n')
    (found,) = rows(AskText, path, Columns(), watcher)
    assert found[0].text == "two"
    assert "half a surrogate pair" in watcher.found[0][0]
