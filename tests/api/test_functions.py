"""The functions of the API: the same jobs as the command line, with Python objects as data."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import unmask
from tests.api.conftest import ROWS
from tests.data.read.test_objects import Dataset, Labels
from unmask.api.arguments import LoggingConsole, changes_of
from unmask.infer.model import Model
from unmask.system.errors import DataError, FolderError, SettingsError

QUICK = {"schedule.steps": 6, "evaluate.times": 1, "optimizer.learning_rate": 5e-3}
RECORDS = [{"text": text, "label": label} for text, label in ROWS]
TEXTS = [text for text, _ in ROWS[:3]]


def finetuned(small, out, task="classify", train=ROWS, **options):
    return unmask.finetune(
        task, small, train=train, dev=train, out=out, settings=QUICK, preflight=False, **options
    )


@pytest.fixture(scope="module")
def model(small, tmp_path_factory):
    return finetuned(small, tmp_path_factory.mktemp("classify") / "run")


# From text to a model


def test_text_becomes_a_vocabulary_a_corpus_and_a_model(workplace, capfd, caplog):
    caplog.set_level(logging.INFO, logger="unmask")
    report = unmask.learn_vocabulary("texts.txt", "vocabulary", size=60)
    assert report.words == 120 * 4
    corpus = unmask.prepare(["texts.txt"], "corpus", tokenizer="vocabulary")
    assert (corpus.folder, corpus.sentences, corpus.read) == (Path("corpus"), 120, 120)
    assert corpus.tokens == 120 * 4
    small = {"size": "tiny", "steps": 2, "max_length": 16, "batch_tokens": 64, "seed": 3}
    model = unmask.pretrain("corpus", "run", **small, settings={"data": {"held_out": 5}})
    assert isinstance(model, Model)
    assert len(model.fill("it is [MASK]", top=2)[0]) == 2
    recipe = Path("run/recipe.toml").read_text()
    assert "seed = 3" in recipe
    assert 'size = "tiny"' in recipe
    assert recipe.count("length = 16") == 1
    assert capfd.readouterr() == ("", "")
    said = "\n".join(caplog.messages)
    assert "parameters" in said, "messages go to the logger"
    assert "training: " in said, "and so does progress"


def test_preparing_again_finds_it_done(workplace):
    first = unmask.prepare("texts.txt", "corpus", tokenizer="minilm")
    assert unmask.prepare("texts.txt", "corpus", tokenizer="minilm") == first
    assert unmask.prepare("texts.txt", "part", tokenizer="minilm", num_tasks=2, task_id=1) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: unmask.learn_vocabulary("texts.txt", "v", size=60, criterion="x"),
            "criterion 'x'",
        ),
        (lambda: unmask.learn_vocabulary([], "v", size=60), "files is empty"),
        (lambda: unmask.learn_vocabulary(["texts.txt", 5], "v", size=60), r"files\[1\] is 5"),
        (lambda: unmask.prepare("texts.txt", "c", tokenizer="minilm", engine="x"), "engine 'x'"),
        (
            lambda: unmask.prepare("texts.txt", "c", tokenizer="minilm", engine="ray", workers=2),
            "Ray decides",
        ),
        (lambda: unmask.pretrain("c", "run", steps=1, minutes=1), "Give one of them"),
        (lambda: unmask.pretrain("c", "run", batch_size=1, batch_tokens=9), "both set the batch"),
        (lambda: unmask.pretrain("c", "run", resume=True, overwrite=True), "resume and overwrite"),
        (lambda: unmask.compile("minilm", "dev.tsv"), "dev.tsv"),
        (lambda: unmask.serve([]), "models is empty"),
        (lambda: unmask.serve("minilm", host="0.0.0.0"), "other machines could use the server"),
        (lambda: unmask.serve("minilm", queue=1, texts=2), "more than the queue holds"),
        (lambda: unmask.serve("minilm", token="\u00e9"), "Use ASCII"),
        (lambda: unmask.serve("minilm", runs=["nowhere"]), "run nowhere: no such folder"),
        (lambda: unmask.serve(["minilm", "x/minilm"]), "two models named minilm"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(workplace, call, message):
    before = {*workplace.rglob("*")}
    with pytest.raises(unmask.UserError, match=message):
        call()
    assert {*workplace.rglob("*")} == before


def test_settings_are_written_as_toml():
    flags = {"seed": 1, "schedule.epochs": None, "loop.batch_size": 4}
    settings = {
        "loop": {"batch_size": np.int64(8)},
        "a.b": True,
        "c": "x y",
        "d": [1, 2],
        "e": Path("f"),
        "g": np.float32(0.5),
    }
    assert changes_of(flags, settings) == [
        "seed=1",
        "loop.batch_size=8",
        "a.b=true",
        'c="x y"',
        "d=[1, 2]",
        'e="f"',
        "g=0.5",
    ]
    for value in (None, object(), {1}):
        with pytest.raises(SettingsError, match=r"settings\['a'\] is "):
            changes_of({}, {"a": value})


# Labelled data


FORMS = {
    "pairs": ROWS,
    "generator": (row for row in ROWS),
    "records": RECORDS,
    "frame": pd.DataFrame(RECORDS),
    "other columns": pd.DataFrame(ROWS, columns=["sentence", "category"]),
    "arrow": pa.Table.from_pylist(RECORDS),
    "datasets": Dataset(
        [{"text": text, "label": int(label == "seven")} for text, label in ROWS],
        label=Labels(["six", "seven"]),
    ),
    "array": np.array(ROWS, dtype=object),
}


@pytest.mark.parametrize("form", FORMS)
def test_labelled_rows_come_in_many_forms(form, small, model, tmp_path):
    data = FORMS[form]
    found = unmask.finetune(
        "classify",
        small,
        train=data,
        dev=RECORDS if form == "generator" else data,  # which is empty after it was read
        out=tmp_path / "run",
        settings=QUICK,
        preflight=False,
    )
    assert found.classify(TEXTS) == model.classify(TEXTS), "the same data, the same model"
    if form != "generator":
        assert unmask.evaluate(model, data).metrics == unmask.evaluate(model, RECORDS).metrics


def test_keywords_are_settings_and_settings_win(small, tmp_path):
    finetuned(small, tmp_path / "run", seed=7, batch_size=4, max_length=12, learning_rate=1e-3)
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    for line in ("seed = 7", "batch_size = 4", "max_length = 12", "learning_rate = 0.005"):
        assert line in recipe


def test_pairs_with_a_label_are_three_values(small, tmp_path):
    flat = [(text, "was it", label) for text, label in ROWS]
    nested = [((text, "was it"), label) for text, label in ROWS]
    one, other = (
        finetuned(small, tmp_path / name, train=rows)
        for name, rows in (("flat", flat), ("nested", nested))
    )
    pair = [("it is six", "was it")]
    assert one.classify(pair) == other.classify(pair)


def test_other_tasks_take_tuples_in_the_order_of_their_fields(small, tmp_path):
    numbers = [(text, index / 7) for index, (text, _) in enumerate(ROWS)]
    assert isinstance(finetuned(small, tmp_path / "number", "regress", numbers).score("it"), float)
    names = [(["john", "lives", "in", "paris"], ["B-PER", "O", "O", "B-LOC"])] * 6
    tagger = finetuned(small, tmp_path / "names", "ner", names)
    assert len(tagger.entities("john lives").tags) == 2
    spans = [("john lives", [{"start": 0, "end": 4, "label": "PER"}])] * 6
    assert finetuned(small, tmp_path / "spans", "ner", spans).task.tags == ("O", "B-PER", "I-PER")
    answers = [("who lives ?", "john lives", [{"text": "john", "answer_start": 0}])] * 6
    reader = finetuned(small, tmp_path / "answers", "qa", answers, max_length=24)
    asked = unmask.predict(reader, [("who lives ?", "john lives in paris")])
    assert asked == [reader.answer("who lives ?", "john lives in paris")]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([*ROWS, ("", "six")], r"^train\[16\]: the text is empty"),
        ([*ROWS, None], r"^train\[16\] is None; need a dictionary, or a tuple \(text, label\)"),
        ([("a", "b", "c", "d")], r"^train\[0\] is \('a', 'b', 'c', 'd'\) \(tuple\); need"),
        ([{"text": "a", "label": {1}}], r"^train\[0\]\['label'\] is \{1\} \(set\)"),
        (5, r"^train is 5 \(int\)"),
        ({"train": ROWS}, "train is a dict with train; need rows"),
        (pd.DataFrame({"text": ["a", None], "label": ["x", "y"]}), r"^train\[1\]: 'text' is None"),
        ("nowhere.tsv", "nowhere.tsv: no such file"),
    ],
)
def test_a_wrong_row_is_named_by_its_index(small, tmp_path, train, message):
    with pytest.raises(DataError, match=message):
        finetuned(small, tmp_path / "run", train=train)


def test_bad_rows_can_be_skipped(small, model, tmp_path):
    rows = [*RECORDS, {"text": "", "label": "six"}]
    found = finetuned(small, tmp_path / "run", train=rows, on_bad="skip")
    assert found.classify(TEXTS) == model.classify(TEXTS)
    with pytest.raises(SettingsError, match="on_bad: unknown choice 'skipp'"):
        unmask.evaluate(model, rows, on_bad="skipp")


def test_fine_tuning_begins_with_a_folder(model, tmp_path):
    with pytest.raises(SettingsError, match="model is a Model; need a folder or a name"):
        unmask.finetune("classify", model, train=ROWS, dev=ROWS, out=tmp_path / "run")


def test_a_column_is_named_once(model):
    with pytest.raises(SettingsError, match=r"columns\['text'\]: text='a' is given"):
        unmask.evaluate(model, RECORDS, text="a", columns={"text": "b"})


# Scores and answers


def test_an_evaluation_has_metrics_mistakes_and_answers(model, workplace):
    found = unmask.evaluate(model, RECORDS)
    assert found.answers == model.classify([text for text, _ in ROWS])
    right = [a.label == label for a, (_, label) in zip(found.answers, ROWS, strict=True)]
    assert found["accuracy"] == found.metrics["accuracy"] == np.mean(right)
    assert {row["label"] for row in found.labels} == {"six", "seven"}
    wrong = [(text, "six" if label == "seven" else "seven") for text, label in ROWS]
    places = {m["where"] for m in unmask.evaluate(model, wrong).mistakes}
    assert places == {f"data[{i}]" for i, ok in enumerate(right) if ok}
    assert json.loads(json.dumps(found.to_dict()))["metrics"] == found.metrics
    assert unmask.evaluate(str(model.path), "dev.tsv").metrics == found.metrics
    assert unmask.evaluate(model.path, [Path("dev.tsv")]).metrics == found.metrics


PREDICTED = {
    "list": TEXTS,
    "generator": (text for text in TEXTS),
    "series": pd.Series(TEXTS),
    "array": np.array(TEXTS),
    "records": [{"text": text} for text in TEXTS],
    "frame": pd.DataFrame({"id": [1, 2, 3], "sentence": TEXTS}),
    "arrow": pa.table({"text": TEXTS}),
    "datasets": Dataset([{"text": text} for text in TEXTS]),
    "tuples": [(text,) for text in TEXTS],
}


@pytest.mark.parametrize("form", PREDICTED)
def test_texts_to_answer_come_in_many_forms(form, model):
    assert unmask.predict(model, PREDICTED[form]) == model.classify(TEXTS)


def test_one_text_has_one_answer_and_a_file_has_many(model, workplace):
    assert unmask.predict(model, TEXTS[0]) == model.classify(TEXTS[0])
    Path("some.txt").write_text("\n".join(TEXTS))
    assert unmask.predict(model.path, Path("some.txt")) == model.classify(TEXTS)
    with pytest.raises(DataError, match="looks like a file. Give pathlib.Path"):
        unmask.predict(model, "some.txt")
    assert unmask.predict(model, []) == []
    assert unmask.predict(model, pd.DataFrame({"x": TEXTS}), text="x") == model.classify(TEXTS)


def test_an_empty_text_has_an_answer_as_well(model):
    found = unmask.predict(model, ["", *TEXTS])
    assert found[1:] == model.classify(TEXTS)
    assert found[0] == model.classify("")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["a", None], r"data\[1\] is None; need a string"),
        ([3], r"data\[0\] is 3 \(int\); need a string, a dictionary, or a tuple \(text, second\)"),
        ([{"text": None}], r"^data\[0\]: 'text' is None"),
        (7, r"data is 7 \(int\)"),
        (["\ud800"], r"data\[0\]: "),
    ],
)
def test_what_cannot_be_answered_is_named(model, data, message):
    with pytest.raises(DataError, match=message):
        unmask.predict(model, data)


def test_a_long_text_can_be_refused(model):
    with pytest.raises(DataError, match="62 tokens"):
        unmask.predict(model, ["it " * 60], truncate=False)
    assert unmask.predict(model, ["it " * 60]) == model.classify(["it " * 60])


def test_a_model_that_was_not_fine_tuned_says_how_it_is_done(small):
    with pytest.raises(SettingsError, match="unmask finetune"):
        unmask.predict(small, "it is six")
    with pytest.raises(FolderError, match="`unmask translate train`"):
        unmask.translate(small, "it is six")


# Translation

PAIRS = [("der hund rennt", "the dog runs"), ("die katze sitzt", "the cat sits")] * 8
SMALL = {
    "model": {"layers": 1, "width": 16, "heads": 2, "inner_width": 32, "max_length": 16},
    "tokenizer.size": 60,
    "schedule.steps": 2,
    "evaluate.times": 1,
}


def translator(out, pairs):
    options = {"settings": SMALL, "preflight": False}
    return unmask.finetune("translate", None, train=pairs, dev=pairs, out=out, **options)


def test_a_translator_is_trained_from_scratch_on_pairs(tmp_path):
    pytest.importorskip("sacrebleu")
    model = translator(tmp_path / "one", PAIRS)
    frame = pd.DataFrame(PAIRS, columns=["source", "target"])
    other = translator(tmp_path / "other", frame)
    texts = ["der hund", "die katze rennt"]
    found = unmask.translate(model, texts, beam_size=2, max_length=5)
    assert found == unmask.translate(other, pd.Series(texts), beam_size=2, max_length=5)
    assert found == [model.translate(text, beam_size=2, max_length=5) for text in texts]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    path = tmp_path / "texts.txt"
    assert unmask.translate(model.path, path, beam_size=2, max_length=5) == found
    assert unmask.predict(model, texts[0]).text == model.translate(texts[0])
    assert {*unmask.predict(model, texts)[0].to_dict()} == {"text", "score"}
    assert unmask.evaluate(model, PAIRS)["bleu"] == unmask.evaluate(model, frame)["bleu"]


# Logging


def test_progress_is_logged_when_a_stage_begins_and_then_seldom(caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="unmask")
    clock = iter([0.0, 5.0, 9.0, 11.0, 12.0])
    monkeypatch.setattr("unmask.api.arguments.time.monotonic", lambda: next(clock))
    console = LoggingConsole()
    for done in (1, 2, 3, 4):
        console.progress("training", "steps", done, 1000, note="loss 2.5")
    console.progress("reading", "lines", 7)
    assert caplog.messages == [
        "training: 1 of 1,000 steps, loss 2.5",
        "training: 4 of 1,000 steps, loss 2.5",
        "reading: 7 lines",
    ]
