"""Compiled models: near the live one, refused if not, and used by everything that answers."""

import json
from copy import copy

import numpy as np
import pandas as pd
import pytest

import unmask
from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder
from unmask.cli import infer as cli
from unmask.infer import loaded as loaded_file
from unmask.infer.compiled.compile import compile_model, records_for
from unmask.infer.compiled.graph import CompiledForward
from unmask.system.errors import DataError, FolderError, SettingsError
from unmask.tasks.ner import FoundEntities, Ner, NerSettings
from unmask.tasks.regress import Number, Regress, RegressSettings

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

HEADS = {
    "encoder": bert_heads(),
    "classify": bert_heads(labels="text", label_names=("bad", "good")),
    "regress": bert_heads(labels="text", label_names=("score",), label_answer="number"),
    "ner": bert_heads(pooler=False, labels="token", label_names=("O", "B-PER", "I-PER")),
    "qa": bert_heads(pooler=False, labels="span", label_names=("start", "end")),
}
WORDS = ["the", "cat", "sat", "a", "dog", "mat"]


def line(number: int, name: str) -> str:
    text = " ".join(WORDS[(number * 5 + i * i) % len(WORDS)] for i in range(2 + number % 9))
    return json.dumps({"question": "the cat", "context": text}) if name == "qa" else text


@pytest.fixture(scope="module", params=HEADS)
def case(request, tmp_path_factory, tokenizer):
    """A model, what it is asked, and itself compiled in int8."""
    place = tmp_path_factory.mktemp("compile")
    save_folder(place / "model", tiny_network(HEADS[request.param]), tokenizer)
    texts = place / "texts.txt"
    texts.write_text("\n".join(line(number, request.param) for number in range(60)))
    live = unmask.load(place / "model")
    records = records_for(live, str(texts))
    compared = compile_model(live, place / "int8", records, int8=True, least=0.9)
    return live, records, unmask.load(place / "int8"), compared


def answers(model, records):
    if model.network.shape.labels is None:
        return model.embed(records)
    return list(model.predict(records))


def test_it_says_nearly_what_the_live_model_says(case):
    live, records, compiled, compared = case
    assert isinstance(compiled.forward, CompiledForward)
    assert compared.texts == 30
    kind = compiled.network.shape.labels and compiled.task.name
    measures = {None: "cosine", "regress": "variance", "ner": "entity words"}
    assert measures.get(kind, "the same") in compared.text
    assert "30 texts" in compared.text
    assert 0.9 <= compared.bar <= compared.found <= 1.0 + 1e-6
    truth, found = answers(live, records), answers(compiled, records)
    assert len(found) == len(truth) == 60
    if live.network.shape.labels is None:
        assert (truth * found).sum(axis=1).min() > 0.9
        assert not np.array_equal(truth, found), "bytes are not the same to the bit"


def test_one_text_is_answered_as_among_many(case):
    _, records, compiled, _ = case
    many = answers(compiled, records)
    for number in (0, 31):
        (alone,) = answers(compiled, [records[number]])
        if compiled.network.shape.labels is None:
            np.testing.assert_allclose(alone, many[number], atol=1e-5)
        elif compiled.task.name == "regress":
            assert alone.score == pytest.approx(many[number].score, abs=1e-5)
        elif compiled.task.name == "ner":
            assert alone.tags == many[number].tags
        else:
            one, two = (getattr(a, "text", None) or a.labels for a in (alone, many[number]))
            assert one == two


def test_vectors_of_a_model_with_labels_are_the_live_ones(case):
    live, _, compiled, _ = case
    if live.network.shape.labels:
        np.testing.assert_array_equal(compiled.embed(WORDS), live.embed(WORDS))


def test_the_runtime_leaves_out_the_fusion_that_is_slow(case, tmp_path, monkeypatch):
    *_, compiled, _ = case
    made = onnxruntime.SessionOptions

    def options():
        found = made()
        found.optimized_model_filepath = str(tmp_path / "run.onnx")
        return found

    monkeypatch.setattr(onnxruntime, "SessionOptions", options)
    CompiledForward(compiled.forward.path)._session()
    kinds = {node.op_type for node in onnx.load(tmp_path / "run.onnx").graph.node}
    assert "LayerNormalization" in kinds
    assert "SkipLayerNormalization" not in kinds


def test_a_graph_that_the_runtime_cannot_run_is_named(case, tmp_path):
    live, records, *_ = case
    (tmp_path / "compiled.onnx").write_bytes(b"not a graph")
    live.forward = CompiledForward(tmp_path / "compiled.onnx")
    try:
        with pytest.raises(FolderError, match=r"compiled\.onnx: ONNX Runtime cannot run it \(.+\)"):
            answers(live, records)
    finally:
        live.forward = live.live


def test_names_are_compared_only_where_there_are_any():
    def tagged(*tags):
        return FoundEntities((), tags)

    truth, found = [tagged("O", "B-PER", "O", "O")], [tagged("O", "B-PER", "I-PER", "O")]
    task = Ner(NerSettings(), ["O", "B-PER", "I-PER"])
    assert task.agreement(truth, found).share == 0.5
    with pytest.raises(DataError, match="finds no entity in 1 texts"):
        task.agreement([tagged("O")], [tagged("O")])


def test_numbers_that_are_all_too_large_do_not_agree():
    truth = [Number(score) for score in (1.0, 2.0, 3.0)]
    task = Regress(RegressSettings())
    assert task.agreement(truth, truth).share == 1.0
    assert task.agreement(truth, [Number(number.score + 2.0) for number in truth]).share < 0


@pytest.fixture
def encoder(tmp_path, tokenizer):
    save_folder(tmp_path / "model", tiny_network(), tokenizer)
    return unmask.load(tmp_path / "model")


def test_a_result_that_is_too_far_off_is_refused(encoder, tmp_path):
    texts = [line(number, "encoder") for number in range(40)]
    with pytest.raises(FolderError, match=r"cosine .* at least; need at least 1\.1\. Nothing was"):
        compile_model(encoder, tmp_path / "int8", texts, int8=True, least=1.1)
    assert not (tmp_path / "int8").exists()


def test_full_precision_is_the_same_but_for_rounding(encoder, tmp_path):
    texts = [line(number, "encoder") for number in range(40)]
    compile_model(encoder, tmp_path / "fp32", texts, int8=False, least=0.99999)
    compiled = unmask.load(tmp_path / "fp32")
    np.testing.assert_allclose(compiled.embed(texts), encoder.embed(texts), atol=1e-5)
    every = compiled.embed(texts, layer=1)
    np.testing.assert_array_equal(every, encoder.embed(texts, layer=1), "other layers are live")


def test_without_the_runtime_it_answers_in_full_precision(encoder, tmp_path, monkeypatch):
    texts = [line(number, "encoder") for number in range(40)]
    compile_model(encoder, tmp_path / "int8", texts, int8=True, least=0.5)
    monkeypatch.setattr(loaded_file, "onnxruntime_installed", lambda: False)
    without = unmask.load(tmp_path / "int8")
    np.testing.assert_array_equal(without.embed(texts), encoder.embed(texts))
    assert without.faster == "it is compiled for ONNX Runtime: pip install 'unmask[onnx]'"


def test_a_command_that_takes_long_says_what_would_be_faster(encoder, monkeypatch, capsys):
    monkeypatch.setattr(cli, "LONG", 0.0)
    with cli.speed_hint_after(encoder):
        pass
    said = capsys.readouterr().err
    assert said.strip() == f"faster: unmask compile {encoder.path} --int8 --out FOLDER"
    encoder.forward = CompiledForward(encoder.path / "compiled.onnx")
    with cli.speed_hint_after(encoder):
        pass
    assert not capsys.readouterr().err


def test_few_texts_are_refused(encoder, tmp_path):
    with pytest.raises(DataError, match="3 texts to compile with; need at least 20"):
        compile_model(encoder, tmp_path / "int8", ["a", "b", "c"], int8=True)


def test_texts_are_found_where_none_are_given(encoder, tmp_path, tokenizer):
    assert len(records_for(encoder, None)) > 100
    save_folder(tmp_path / "qa", tiny_network(HEADS["qa"]), tokenizer)
    with pytest.raises(
        SettingsError, match="the task needs question and context, and there are no default"
    ):
        records_for(unmask.load(tmp_path / "qa"), None)


def test_a_folder_name_may_have_the_characters_of_patterns(encoder, tmp_path):
    texts = [line(number, "encoder") for number in range(40)]
    compile_model(encoder, tmp_path / "[c]*?", texts, int8=True, least=0.5)
    assert isinstance(unmask.load(tmp_path / "[c]*?").forward, CompiledForward)


def test_an_output_that_cannot_be_written_is_refused_before_texts_are_read(encoder, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FolderError, match=r"link: already exists \(a symbolic link"):
        compile_model(encoder, tmp_path / "link", [], int8=True)


def test_a_compiled_model_leaves_its_graph_behind_when_it_moves_or_is_saved(
    case, tmp_path, monkeypatch
):
    _, _, compiled, _ = case
    assert repr(compiled).endswith("cpu, ONNX Runtime)")
    compiled.save(tmp_path / "saved")
    assert not unmask.load(tmp_path / "saved").compiled
    devices = {"cuda": "cpu:0", "cpu": "cpu"}
    monkeypatch.setattr("unmask.infer.model.device_of", devices.get)
    moved = copy(compiled).to("cuda")
    assert moved.forward is moved.live
    assert moved.to("cpu").forward is compiled.graph


def test_python_objects_calibrate_and_compare_as_a_file_does(case, tmp_path):
    live, records, _, compared = case
    if live.network.shape.labels is None:
        given = iter(records)
    elif live.task.name == "qa":
        given = [(record.question, record.context) for record in records]
    else:
        given = pd.Series([record.key[0] for record in records])
    found = unmask.compile(live, tmp_path / "again", int8=True, texts=given, least=0.9)
    assert (found.folder, found.texts, found.least) == (tmp_path / "again", 30, 0.9)
    assert found.agreement == pytest.approx(compared.found, abs=1e-6)
    assert found.summary == compared.text
