"""Labelled files that are bad: each is refused by its line, with what to do, and found by `check`.

The name of a case, the file's name, what is in it, where its fault is, the message about it.
"""

import json
import re
from pathlib import Path

import pytest

from unmask.data.labelled.columns import Columns
from unmask.data.read.lines import REFUSE
from unmask.system.errors import DataError
from unmask.system.plugins import find_class
from unmask.system.settings import validate
from unmask.tasks import TASKS
from unmask.tasks.check import examine

GOOD = "text\tlabel\ngood film\tpos\nbad film\tneg\n"
PASSAGE = "It began in October 1973 in Kuwait."


def squad(**changes) -> str:
    """One question, with something wrong about it."""
    qa = {"id": "q1", "question": "When?", "answers": [{"text": "1973", "answer_start": 20}]}
    qa |= changes
    paragraph = {"context": qa.pop("context", PASSAGE), "qas": [qa]}
    kept = {k: v for k, v in qa.items() if v is not ...}
    paragraph["qas"] = [kept]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]})


def answer(text, start) -> str:
    return squad(answers=[{"text": text, "answer_start": start}])


def marked(*spans, text="John lives in Paris.") -> str:
    return json.dumps({"text": text, "entities": list(spans)}) + "\n"


IN_SQUAD = r": data\[0\]\.paragraphs\[0\](\.qas\[0\])?( \(id q1\))?"
CASES: dict[str, tuple[str, str, str, str, str]] = {
    # classification
    "too few columns": (
        "classify", "a.tsv", GOOD + "only a text\n", ":4", "2 columns and this row 1"
    ),
    "too many columns": ("classify", "a.tsv", GOOD + "a\tb\tc\n", ":4", "2 columns and this row 3"),
    "a quote never closed": (
        "classify", "a.csv", 'text,label\n"good,pos\n', ":2", "quotation mark is unmatched"
    ),
    "a column twice": ("classify", "a.tsv", "text\ttext\nx\ty\n", ":1", "'text' occurs twice"),
    "a text that is empty": ("classify", "a.tsv", GOOD + " \tpos\n", ":4", "the text is empty"),
    "a label that is empty": ("classify", "a.tsv", GOOD + "film\t\n", ":4", "the label is empty"),
    "one label only": (
        "classify", "a.tsv", "text\tlabel\na\tx\nb\tx\n", ":2", "only the label 'x'"
    ),
    "fractions as labels": (
        "classify", "a.tsv", "text\tlabel\n" + "".join(f"t{i}\t0.{i}5\n" for i in range(9)), ":2",
        "different numbers.*use regress",
    ),
    "not UTF-8": ("classify", "a.tsv", "text\tlabel\n\udce9t\u00e9\tpos\n", ":2", "not UTF-8"),
    "nothing in it": ("classify", "a.tsv", "", "", "empty; need a header and a row"),
    "only a header": ("classify", "a.tsv", "text\tlabel\n", "", "no examples found"),
    "not JSON": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{oops\n', ":2", "not valid JSON"
    ),
    "a key twice": (
        "classify", "a.jsonl", '{"text": "a", "text": "b", "label": "x"}\n', ":1", "given twice"
    ),
    "a text that is a number": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": 7, "label": "y"}\n', ":2",
        "'text' is 7; need a string in quotes",
    ),
    "a label that is a table": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": {}}\n', ":2",
        r"the label is \{\}",
    ),
    "a label that is null": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n', ":2",
        "the label is None",
    ),
    "a label that is a fraction": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": 0.5}\n', ":2",
        "the label is 0.5; expected a name or a whole number",
    ),
    "a list where one label is due": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": ["x", "y"]}\n',
        ":2", "expected one label, got a list.*task.multi_label=true",
    ),
    "a line without its label": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b"}\n', ":2",
        "unknown column 'label'.*--label",
    ),
    "not a number in JSON": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": NaN}\n', ":2",
        "NaN is not a JSON number",
    ),
    "5,000 digits": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": ' + "7" * 5000
        + "}\n", ":2", "not valid JSON",
    ),
    "nested too deep": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": ' + "[" * 100_000
        + "\n", ":2",
        "nested too deep",
    ),
    # regression
    "a name where a number is due": (
        "regress", "a.tsv", "text\tscore\na\t1.5\nb\thigh\n", ":3",
        "the score is 'high'; expected a number"
    ),
    "NaN": ("regress", "a.tsv", "text\tscore\na\t1.5\nb\tnan\n", ":3", "expected a finite number"),
    "infinity": (
        "regress", "a.tsv", "text\tscore\na\t1.5\nb\t-inf\n", ":3", "expected a finite number"
    ),
    "a comma for a point": ("regress", "a.tsv", "text\tscore\na\t1.5\nb\t2,5\n", ":3", "'2,5'"),
    "true for a number": (
        "regress", "a.jsonl", '{"text": "a", "score": 1}\n{"text": "b", "score": true}\n', ":2",
        "the score is True",
    ),
    "always the same number": (
        "regress", "a.tsv", "text\tscore\na\t1.5\nb\t1.5\n", ":2", "1.5 in all 2 examples"
    ),
    # questions
    "offset too small": (
        "qa", "a.json", answer("1973", 19), IN_SQUAD, r"begin at 19.*begins at 20"
    ),
    "offset too large": (
        "qa", "a.json", answer("1973", 23), IN_SQUAD, r"begin at 23.*begins at 20"
    ),
    "offset below zero": ("qa", "a.json", answer("1973", -1), IN_SQUAD, r"begin at -1.*at 20"),
    "offset beyond the end": ("qa", "a.json", answer("1973", 999), IN_SQUAD, r"999.*begins at 20"),
    "offset in bytes": (
        "qa", "a.json",
        squad(context="Café \u2013 in 1973.", answers=[{"text": "1973", "answer_start": 13}]),
        IN_SQUAD, "count bytes; need characters",
    ),
    "offset in UTF-16 units": (
        "qa", "a.json",
        squad(context="\U0001f600 in 1973.", answers=[{"text": "1973", "answer_start": 6}]),
        IN_SQUAD, "count UTF-16 units; need characters",
    ),
    "an answer that is not there": (
        "qa", "a.json", answer("1974", 20), IN_SQUAD, "'1974' does not occur in its passage"
    ),
    "an answer that is empty": ("qa", "a.json", answer("", 20), IN_SQUAD, "'text' is empty"),
    "an offset that is a text": (
        "qa", "a.json", answer("1973", "20"), IN_SQUAD, "need an integer"
    ),
    "impossible, and answered": (
        "qa", "a.json", squad(is_impossible=True), IN_SQUAD,
        "'is_impossible' is true, but there are 1"
    ),
    "possible, and not answered": (
        "qa", "a.json", squad(is_impossible=False, answers=[]), IN_SQUAD,
        "is false, but there is no"
    ),
    "impossible is a number": (
        "qa", "a.json", squad(is_impossible=1), IN_SQUAD, "need true or false"
    ),
    "no question": ("qa", "a.json", squad(question=...), IN_SQUAD, "'question' is missing"),
    "an empty question": ("qa", "a.json", squad(question=" "), IN_SQUAD, "'question' is empty"),
    "an empty passage": ("qa", "a.json", squad(context=""), IN_SQUAD, "'context' is empty"),
    "no id": ("qa", "a.json", squad(id=...), IN_SQUAD, "'id' is missing"),
    "no data": ("qa", "a.json", "{}", "", "'data' is missing"),
    "data that is no list": ("qa", "a.json", '{"data": 7}', "", "'data' is 7; need a list"),
    "a list for an object": ("qa", "a.json", "[]", "", "need a JSON object"),
    "answers and offsets of different number": (
        "qa", "a.jsonl",
        '{"question": "When?", "context": "In 1973.", '
        '"answers": {"text": ["1973"], "answer_start": []}}\n',
        ":1", "1 answers and 0 offsets",
    ),
    "an id twice": (
        "qa", "a.jsonl",
        2 * '{"id": "x", "question": "When?", "context": "In 1973.", "answers": []}\n', ":2",
        "the id 'x' is already used by",
    ),
    "no answer anywhere": (
        "qa", "a.jsonl", '{"question": "When?", "context": "In 1973.", "answers": []}\n', ":1",
        "none of 1 questions has an answer",
    ),
    # names
    "I- after O": (
        "ner", "a.conll", "a B-PER\nb O\n\nc B-LOC\n\nd O\ne I-LOC\n", ":7",
        "'I-LOC' after O; in IOB2 an entity begins with B-",
    ),
    "I-X after B-Y": (
        "ner", "a.conll", "a B-PER\nb I-LOC\n\nc B-LOC\n\nd B-LOC\n", ":2", "'I-LOC' after B-PER"
    ),
    "an unknown letter": ("ner", "a.conll", "a B-PER\nb X-LOC\n", ":2", "the tag is 'X-LOC'"),
    "a tag without a dash": ("ner", "a.conll", "a B-PER\nb LOC\n", ":2", "the tag is 'LOC'"),
    "a tag without a label": ("ner", "a.conll", "a B-PER\nb B-\n", ":2", "the tag is 'B-'"),
    "BIOES that does not end": (
        "ner", "a.conll", "a S-PER\n\nb B-LOC\nc O\n", ":4", "after an unfinished LOC entity; in"
    ),
    "BIOES that ends with the sentence": (
        "ner", "a.conll", "a S-PER\n\nb B-LOC\nc I-LOC\n", ":4",
        "the sentence ends inside a LOC entity"
    ),
    "BIOES and a stray end": ("ner", "a.conll", "a S-PER\nb E-LOC\n", ":2", "'E-LOC' after S-PER"),
    "a line without a tag": (
        "ner", "a.conll", "a B-PER\nb\n", ":2", "1 columns; need a word and its tag"
    ),
    "a column too many": (
        "ner", "a.conll", "a X B-PER\nb Y Z O\n", ":2", "4 columns.*3 columns as on"
    ),
    "no name at all": ("ner", "a.conll", "a O\nb O\n", ":1", "no entity in 1 sentences"),
    "tokens and tags of different number": (
        "ner", "a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}\n', ":1", "2 tokens and 1 tags"
    ),
    "a token that is empty": (
        "ner", "a.jsonl", '{"tokens": ["a", " "], "tags": ["O", "O"]}\n', ":1", "token 1 is empty"
    ),
    "tags that are numbers": (
        "ner", "a.jsonl", '{"tokens": ["a"], "tags": [3]}\n', ":1", r"'tags' is \[3\]; need a list"
    ),
    "an entity beyond the text": (
        "ner", "a.jsonl", marked([0, 99, "PER"]), ":1", "text of 20 char"
    ),
    "an entity backwards": ("ner", "a.jsonl", marked([4, 0, "PER"]), ":1", "from 4 to 0"),
    "an entity that cuts a word": (
        "ner", "a.jsonl", marked([0, 3, "PER"]), ":1", "'Joh', splits a word"
    ),
    "an entity with a space": (
        "ner", "a.jsonl", marked([0, 5, "PER"]), ":1", "includes a space"
    ),
    "entities that overlap": (
        "ner", "a.jsonl", marked([0, 10, "PER"], [5, 13, "LOC"]), ":1",
        "overlap; a word has one label"
    ),
    "an entity without a label": ("ner", "a.jsonl", marked([0, 4, ""]), ":1", "and a label"),
    "an entity that is a text": (
        "ner", "a.jsonl", marked("John"), ":1", "need start, end and label"
    ),
    "entities that are no list": (
        "ner", "a.jsonl", '{"text": "John", "entities": 7}\n', ":1", "entities are 7; need a list"
    ),
    "half a character": (
        "classify", "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "\\ud800", "label": "y"}\n',
        ":2", "half a surrogate pair"
    ),
    "a quote alone in the first row": (
        "classify", "a.csv", 'text,"la"bel\na,x\n', ":", "a quotation mark is unmatched"
    ),
    "an article that is no object": (
        "qa", "a.json", '{"data": [7]}', r": data\[0\]", "7 is not an object; need one with"
    ),
    "a text that is missing": ("ner", "a.jsonl", '{"entities": []}\n', ":1", "'text' is missing"),
}  # fmt: skip


def read_all(task: str, path: Path) -> None:
    """As a run does: read everything, learn what it poses, check it."""
    kind = find_class("task", TASKS, task)
    config = validate(kind.Config, {}, where="task")
    columns, _ = kind.resolve_columns([path], Columns())
    records = list(kind.read([path], columns, REFUSE, config))
    if not records:
        raise DataError(f"{path}: no examples found.")
    kind.learn(config, records).check(records)


UNREADABLE = {  # cases in which the rest of the file cannot be read either
    "a column twice",
    "nothing in it",
    "a key twice",
    "no data",
    "data that is no list",
    "a list for an object",
    "a quote alone in the first row",
}


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    task, name, text, place, says = CASES[request.param]
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return task, path, place, says


def test_there_are_enough_of_them():
    assert len(CASES) >= 70


def test_a_bad_file_is_refused_where_it_is_bad(case):
    task, path, place, says = case
    with pytest.raises(DataError) as error:
        read_all(task, path)
    message = str(error.value)
    assert re.search(f"^{re.escape(str(path))}{place}", message), message
    assert re.search(says, message), message
    assert message.endswith((".", "?"))


def test_check_finds_it_and_reads_on(case, request):
    task, path, place, says = case
    if request.node.callspec.params["case"] in UNREADABLE:
        with pytest.raises(DataError, match=says):
            examine(path, task=task)
        return
    found = examine(path, task=task)
    assert any(re.search(says, fault) for fault in found.faults), found.faults
