"""Prediction: every task from lines, in order; the same answers as from Python; steady memory."""

import json
from dataclasses import asdict

import pandas as pd
import pytest

import unmask
from tests.tasks.conftest import WORDS
from unmask.checkpoint.folder import save_folder
from unmask.data.labelled.columns import Columns
from unmask.data.read.lines import StopOrSkip
from unmask.infer.model import Model
from unmask.infer.predict import evaluate_file, predict_lines
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.system.errors import DataError, FolderError, SettingsError
from unmask.tasks.classify import Classify, ClassifySettings
from unmask.tasks.ner import Ner, NerSettings
from unmask.tasks.qa import Qa, QaSettings
from unmask.tasks.regress import Regress, RegressSettings
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import SPECIALS, Vocabulary

TASKS = {
    "classify": Classify(ClassifySettings(), ["bad", "good"]),
    "regress": Regress(RegressSettings()),
    "qa": Qa(QaSettings(stride=8)),
    "ner": Ner(NerSettings(stride=8), ["O", "B-PER", "I-PER"]),
}
LINES = {
    "classify": [{"text": "a film", "second": "good"}, {"text": "the cat", "second": "a dog"}],
    "regress": [{"text": "a film", "second": "good"}, {"text": "the cat", "second": "a dog"}],
    "qa": [
        {"question": "when ?", "context": "it began in october 1973 . " * 9, "id": id}
        for id in ("a", "b")
    ],
    "ner": [{"text": "john smith lives in paris"}, {"text": "the cat . " * 30}],
}


@pytest.fixture
def model(tmp_path):
    """A model for a task, as from its folder."""

    def make(name) -> Model:
        import torch

        torch.manual_seed(1)
        tokenizer = Tokenizer(Vocabulary([*SPECIALS, *WORDS]))
        config = ModelConfig(
            vocab_size=len(tokenizer.vocabulary), width=16, layers=2, heads=2, inner_width=32,
            max_length=32, init_std=0.3,
        )  # fmt: skip
        task = TASKS[name]
        save_folder(
            tmp_path / name,
            Network(Shape.of(config, task.heads(config, Tokenizers(tokenizer, 32), {}))).eval(),
            tokenizer,
            task={"name": name, **task.config.model_dump()},
        )
        return Model.load(tmp_path / name)

    return make


def written(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def flat(value) -> list[object]:
    """The numbers and texts in an answer, in order; numbers depend on their batch by rounding."""
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return [leaf for part in inner for leaf in flat(part)]
    return [value]


@pytest.mark.parametrize("name", list(TASKS))
def test_a_file_of_objects_is_answered_line_by_line(model, tmp_path, name):
    own = model(name)
    found = list(predict_lines(own, written(tmp_path, LINES[name]), Columns()))
    assert len(found) == len(LINES[name])
    json.dumps(found)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_questions_stand_in_a_table_with_columns_of_any_name(model, tmp_path, ending):
    own, path = model("qa"), tmp_path / f"table.{ending}"
    expected = list(predict_lines(own, written(tmp_path, LINES["qa"]), Columns()))
    cells = [{"ask": row["question"], "context": row["context"]} for row in LINES["qa"]]
    lines = [json.dumps(row) for row in cells]
    if ending == "csv":
        lines = ["ask,context", *(",".join(row.values()) for row in cells)]
    path.write_text("\n".join(lines) + "\n")
    assert list(predict_lines(own, str(path), Columns.from_fields({"question": "ask"}))) == expected


def test_a_column_of_a_field_that_does_not_exist_is_refused(model, tmp_path):
    own, path = model("qa"), written(tmp_path, LINES["qa"])
    says = "unknown field 'text'; .* The fields are context, id, question"
    with pytest.raises(SettingsError, match=f"--text: {says}"):
        list(predict_lines(own, path, Columns(text="x")))
    with pytest.raises(SettingsError, match="--label: .* are answers, context, id, is_impossible"):
        evaluate_file(own, [path], Columns(label="x"))


def test_python_and_the_file_give_the_same_answers(model, tmp_path):
    labels, number, answer, names = (model(name) for name in TASKS)
    texts = [("a film", "good"), ("the cat", "a dog")]
    said = {name: list(predict_lines(m, written(tmp_path, LINES[name]), Columns()))
            for name, m in zip(TASKS, (labels, number, answer, names), strict=True)}  # fmt: skip
    assert [a.labels for a in labels.classify(texts)] == [a["labels"] for a in said["classify"]]
    assert number.score(texts) == pytest.approx([a["score"] for a in said["regress"]], abs=1e-5)
    one = answer.answer(LINES["qa"][0]["question"], LINES["qa"][0]["context"])
    assert (one.text, one.start) == (said["qa"][0]["text"], said["qa"][0]["start"])
    found = names.entities(LINES["ner"][0]["text"])
    assert list(found.tags) == list(said["ner"][0]["tags"])


@pytest.mark.parametrize("name", ["classify", "regress", "ner"])
def test_every_line_of_plain_text_has_an_answer_also_a_blank_one(model, tmp_path, name):
    own, path, watcher = model(name), tmp_path / "lines.txt", StopOrSkip(False, print)
    path.write_text('\njohn smith\n  \n{"text": "the cat"}\n\n')
    found = list(predict_lines(own, str(path), Columns(), watcher))
    path.write_text("john smith\nthe cat\n")
    filled = list(predict_lines(own, str(path), Columns()))
    assert len(found) == 5
    for answer, alone in zip((found[1], found[3]), filled, strict=True):
        for value, other in zip(flat(answer), flat(alone), strict=True):
            expected = pytest.approx(other, rel=1e-5) if isinstance(other, float) else other
            assert value == expected, "answer N belongs to line N"
    assert watcher.blanks == 3
    empty = {"classify": lambda: own.classify([""]), "ner": lambda: [own.entities("")]}
    for answer in empty.get(name, list)():
        assert {**asdict(answer)} == found[0] == found[4]


def test_a_blank_line_asks_no_question(model, tmp_path):
    own, path, line = model("qa"), tmp_path / "lines.txt", json.dumps(LINES["qa"][0])
    path.write_text(f"{line}\n\n{line}\n")
    place = rf"{path}:2: the line is blank; expected a JSON object with question and context\."
    with pytest.raises(DataError, match=f"{place} .*--on-bad skip"):
        list(predict_lines(own, str(path), Columns(), StopOrSkip(False, print)))
    said = []
    watcher = StopOrSkip(True, said.append)
    assert len(list(predict_lines(own, str(path), Columns(), watcher))) == 2
    assert watcher.skipped == 1
    assert [line.partition(": the line")[0] for line in said] == [f"skipped: {path}:2"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_record_of_a_table_without_text_is_refused_with_its_place(model, tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    rows = {"csv": 'text\na cat\n""\n', "tsv": "text\na cat\n\n"}
    path.write_text(rows.get(ending, '{"text": "a cat"}\n{"text": ""}\n'))
    with pytest.raises(DataError, match=rf"{path}:{2 if ending == 'jsonl' else 3}: .*empty"):
        list(predict_lines(model("classify"), str(path), Columns()))


def test_a_long_passage_is_read_to_its_end(model):
    """Ten times what fits; the answer is a stretch of it, wherever it is."""
    context = "the cat sat on the mat . " * 20 + "it began in october 1973 ."
    found = model("qa").answer("when ?", context)
    assert context[found.start : found.end] == found.text
    assert any(c.start > 400 for c in found.candidates) or found.start >= 0


@pytest.mark.parametrize("empty", ["\u200b", "\ufffd", "\x00"])
def test_a_text_without_words_has_no_names_and_keeps_its_place(model, empty):
    from unmask.data.labelled.conll import sentence_of

    texts = ["john", empty, "john smith"]
    found = list(model("ner").predict(sentence_of(text, "here") for text in texts))
    assert [len(names.tags) for names in found] == [1, 0, 2]


def test_what_was_cut_is_counted(model):
    own = model("classify")
    own.classify(["a cat", "the " * 100])
    assert (own.cut_texts, own.cut_tokens) == (1, 70)


def test_as_much_is_read_at_once_as_in_training(model):
    own = model("classify")
    own.settings = {**own.settings, "length": 12}
    own.classify(["the " * 100])
    assert own.cut_tokens == 90
    own.settings["length"] = "12"
    with pytest.raises(FolderError, match=r"task\.length '12'; need a whole number"):
        own.classify(["the"])


def test_a_model_of_another_task_says_what_it_is(model):
    with pytest.raises(
        SettingsError, match="for ner, not for classify. .* `unmask finetune classify MODEL"
    ):
        model("ner").classify(["a"])


def test_scores_of_a_file_are_those_of_its_answers(model, tmp_path):
    rows = [{"text": f"{'good' if i % 3 else 'bad'} film", "label": "good"} for i in range(9)]
    own = model("classify")
    scores, detail, answers = evaluate_file(own, [written(tmp_path, rows)], Columns())
    right = sum(answer.label == "good" for answer in answers)
    assert scores["accuracy"] == pytest.approx(right / 9)
    assert sum(row["count"] for row in detail.table if row["label"] == "good") == 9


LABELLED = {
    "classify": [{"text": f"a {w} film", "label": w} for w in ("good", "bad")] * 9,
    "regress": [{"text": f"{'very ' * n}good", "score": n} for n in range(9)] * 2,
    "qa": [
        {
            "id": f"{place}{at}",
            "question": "where ?",
            "context": "the cat . " * at + f"john lives in {place} ." + " a dog ." * (9 - at),
            "answers": [{"text": place, "answer_start": 10 * at + 14}] if at % 3 else [],
        }
        for place in ("paris", "london")
        for at in range(9)
    ],
    "ner": [
        {
            "text": "the cat . " * at + "john smith lives",
            "spans": [{"start": 10 * at, "end": 10 * at + 10, "label": "PER"}],
        }
        for at in range(18)
    ],
}


@pytest.mark.parametrize("name", list(LABELLED))
def test_a_model_scores_exactly_what_training_said_it_does(model, tmp_path, name):
    """Windows, best spans, the threshold of no answer: the same code, so the same numbers."""
    model(name)
    files = written(tmp_path, LABELLED[name])
    changes = {"schedule.epochs": 20, "loop.batch_size": 8, "evaluate.times": 1}
    changes |= {"optimizer.learning_rate": 5e-3}
    changes |= {"task.stride": 8, "tokenizer.max_length": 32} if name in ("qa", "ner") else {}
    out = tmp_path / "run"
    own = unmask.finetune(name, tmp_path / name, train=files, dev=files, out=out, settings=changes)
    told = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    found, _, _ = evaluate_file(own, [files], Columns())
    assert found[own.task.metric] > 0
    assert found == {metric: told[metric] for metric in found}


def test_an_empty_file_has_no_scores(model, tmp_path):
    with pytest.raises(DataError):
        evaluate_file(model("classify"), [written(tmp_path, [])], Columns())


def test_only_a_group_of_lines_is_held_at_a_time(model, tmp_path, monkeypatch):
    from unmask.infer import engine

    monkeypatch.setattr(engine, "GROUP", 10)
    taken = 0
    record = Classify.record

    def counted(*arguments):
        nonlocal taken
        taken += 1
        return record(*arguments)

    monkeypatch.setattr(Classify, "record", counted)
    path = tmp_path / "lines.txt"
    path.write_text("a good film\n" * 5000)
    answers = predict_lines(model("classify"), str(path), Columns())
    next(answers)
    assert taken < 2000


def test_a_string_has_one_answer_and_a_list_has_a_list(model):
    labels, number, names = model("classify"), model("regress"), model("ner")
    assert labels.classify(["a film"]) == [labels.classify("a film")]
    assert number.score(["a film"]) == [number.score("a film")]
    assert names.entities(["john smith", "a cat"])[0] == names.entities("john smith")
    assert labels.classify(pd.Series(["a film", "the cat"])) == labels.classify(
        iter(["a film", "the cat"])
    )
    with pytest.raises(DataError, match=r"texts\[1\] is None; need a string or a pair"):
        labels.classify(["a", None])
    with pytest.raises(DataError, match="62 tokens"):
        labels.classify("the " * 60, truncate=False)


def test_several_questions_share_a_passage_or_have_their_own(model):
    reader, first, second = model("qa"), "when ?", "who lives ?"
    passage, other = "it began in october 1973 .", "john lives in paris"

    def spans(questions, contexts):
        return [(one.text, one.start, one.end) for one in reader.answer(questions, contexts)]

    about_time, about_place = (spans([q], passage)[0] for q in (first, second))
    assert spans([first, second], passage) == [about_time, about_place]
    assert spans([first, second], [passage, other]) == [about_time, *spans([second], other)]
    assert spans(first, [passage]) == [about_time]
    alone = reader.answer(first, passage)
    assert (alone.text, alone.start, alone.end) == about_time
    with pytest.raises(DataError, match="2 questions and 1 passages"):
        reader.answer([first, second], [passage])


@pytest.mark.parametrize("name", TASKS)
def test_the_dictionary_of_an_answer_is_what_the_command_prints(model, tmp_path, name):
    own = model(name)
    printed = list(predict_lines(own, written(tmp_path, LINES[name]), Columns()))
    answers = unmask.predict(own, LINES[name])
    assert [answer.to_dict() for answer in answers] == json.loads(json.dumps(printed))


@pytest.mark.parametrize("wrong", ["a film", ("a", "b"), {"text": "a film"}])
def test_the_method_for_records_says_what_takes_texts(model, wrong):
    with pytest.raises(DataError, match=r"need records .* call unmask\.predict\(model, data\)"):
        list(model("classify").predict([wrong]))
