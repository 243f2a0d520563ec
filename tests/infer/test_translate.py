"""Translating: every text, in order, whatever its length; and where each word looked."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch

from tests.pairs import RECURRENT, TRANSFORMER, rows_of, toy_files, toy_pairs
from tests.train.conftest import single_threaded
from unmask.checkpoint.folder import load_folder
from unmask.data.labelled.columns import Columns
from unmask.infer import engine
from unmask.infer.compiled.compile import compile_model
from unmask.infer.compiled.export import export_onnx
from unmask.infer.model import Model
from unmask.infer.predict import evaluate_file
from unmask.infer.translate import Translator, WordAlignment
from unmask.inspect.alignment import alignment_svg
from unmask.inspect.attribution import gradient_times_input
from unmask.jobs.finetune import Finetune
from unmask.jobs.settings_read import TRANSLATE
from unmask.model.config import SearchSettings
from unmask.objectives.next_token import decoder_states
from unmask.system.errors import DataError, FolderError, SettingsError
from unmask.tasks.translate import Translate, TranslateSettings
from unmask.train.compose import compose
from unmask.train.run import Run

TEXTS = [pair.source for pair in toy_pairs(50, seed=3)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model of each kind, hardly trained."""
    place, found = tmp_path_factory.mktemp("models"), {}
    data = toy_files(200, 10)
    kinds = {"transformer": TRANSFORMER, "attention": RECURRENT, "lstm": RECURRENT}
    for recipe, changes in kinds.items():
        changes = [*changes, "model.max_length=24"]
        chosen = compose(TRANSLATE, recipe, changes)
        with single_threaded():
            Run(Finetune(None, data, scope=TRANSLATE), chosen, place / recipe).go()
        found[recipe] = place / recipe / "model"
    return found


@pytest.fixture(params=["transformer", "attention", "lstm"])
def model(request, folders):
    return Translator(load_folder(folders[request.param]))


def texts_of(found):
    return [own.text for own in found]


def test_order_and_company_never_change_a_translation(model):
    together = texts_of(model.translate(TEXTS))
    assert texts_of(model.translate(TEXTS[::-1]))[::-1] == together
    assert [texts_of(model.translate([text]))[0] for text in TEXTS[:10]] == together[:10]


@pytest.mark.parametrize("how", [{"beam_size": 3}, {"sample": True, "seed": 4}])
def test_neither_do_they_with_beams_or_draws(model, how):
    settings = SearchSettings(**how)
    together = texts_of(model.translate(TEXTS[:20], settings))
    assert texts_of(model.translate(TEXTS[:7], settings)) == together[:7]


def test_workers_side_by_side_say_the_same(model, monkeypatch):
    alone = texts_of(model.translate(TEXTS))
    begun = []
    several = engine._worker_map
    monkeypatch.setattr(
        engine, "_worker_map", lambda workers: begun.append(workers) or several(workers)
    )
    monkeypatch.setattr(Translate, "worker_tokens", 40)
    torch.set_num_threads(2)  # `one_thread` puts it back
    assert texts_of(model.translate(TEXTS)) == alone
    assert begun == [2]


def test_blank_texts_stay_blank_and_in_their_place(model):
    found = texts_of(model.translate(["", "hund", "  ", "", "rot", ""]))
    plain = texts_of(model.translate(["hund", "rot"]))
    assert found == ["", plain[0], "", "", plain[1], ""]


def test_a_text_that_is_too_long_is_translated_in_parts_or_refused(model):
    long = "hund rot. " * 20
    (found,) = model.translate([long])
    assert model.split_texts == 1
    assert found.text
    with pytest.raises(
        DataError, match=r"text 1: 62 tokens; the model's maximum is 24.*--no-split"
    ):
        list(model.translate([long], split=False))


def test_a_sentence_that_alone_is_too_long_is_cut_into_stretches(model):
    (found,) = model.translate(["hund rot " * 20])
    assert model.split_texts == 1
    assert isinstance(found.text, str)


def test_python_says_it_in_one_line(folders):
    model = Model.load(folders["transformer"])
    expected = texts_of(Translator(load_folder(folders["transformer"])).translate(TEXTS[:3]))
    assert model.translate(TEXTS[:3]) == expected
    assert model.translate(TEXTS[0]) == expected[0]
    with pytest.raises(TypeError, match="unexpected keyword argument 'beam'"):
        model.translate(["hund"], beam=3)
    with pytest.raises(SettingsError, match="translate: '.*' is 0; input should be greater"):
        model.translate(["hund"], beam_size=0)


def test_a_model_without_a_decoder_is_refused(tiny_folder):
    with pytest.raises(FolderError, match="has no decoder, so it cannot generate text"):
        Translator(load_folder(tiny_folder))


@pytest.fixture
def tiny_folder(tmp_path, tokenizer):
    from tests.conftest import tiny_network
    from unmask.checkpoint.folder import save_folder

    save_folder(tmp_path / "plain", tiny_network(), tokenizer)
    return tmp_path / "plain"


@pytest.mark.parametrize("kind", ["transformer", "attention"])
def test_where_a_word_looked_is_what_attention_weighs(folders, kind):
    model = Translator(load_folder(folders[kind]))
    looked = model.looked("hund rot alt", "old red dog")
    assert looked.source == ["[CLS]", "hund", "rot", "alt", "[SEP]"]
    assert looked.target == ["old", "red", "dog", "[SEP]"]
    np.testing.assert_allclose(looked.weights.sum(axis=1), 1.0, atol=1e-5)


def test_the_alignment_of_a_transformer_equals_a_spelled_out_computation(folders):
    model = Translator(load_folder(folders["transformer"]))
    network = model.network
    from unmask.data.labelled.parallel import Pair

    task, pair = Translate(TranslateSettings()), Pair("hund rot", "red dog", "here")
    ((_, (tokens,)),) = task.windows([pair], model.tokens)
    batch = task.batch([tokens], model.tokens)
    inputs = []
    # Pre-norm: what comes out of the norm asks the source.
    (block,) = network.heads["decoder"].blocks
    hook = block.cross_norm.register_forward_hook(lambda module, given, out: inputs.append(out))
    with torch.inference_mode():
        decoder_states(network, batch)
        hook.remove()
        (asking,), memory = inputs, network.encode(batch)
        width, heads = network.config.width, network.config.heads
        weight, bias = block.cross.qkv.weight, block.cross.qkv.bias
        q = (asking @ weight[:width].T + bias[:width]).view(-1, heads, width // heads)
        k = (memory @ weight[width : 2 * width].T + bias[width : 2 * width]).view(
            -1, heads, width // heads
        )
        scores = torch.einsum("thd,shd->hts", q, k) / (width // heads) ** 0.5
        expected = scores.softmax(dim=-1).mean(dim=0).numpy()
    looked = model.looked("hund rot", "red dog")
    assert len(looked.source) == len(tokens.source), "every word is one piece here"
    np.testing.assert_allclose(looked.weights, expected, atol=1e-5)


def test_layers_are_averaged_also_if_there_are_as_many_as_words(folders):
    model = Translator(load_folder(folders["transformer"]))
    blocks = model.network.heads["decoder"].blocks
    blocks.append(deepcopy(blocks[0]))
    looked = model.looked("hund", "dog")
    assert looked.weights.shape == (len(blocks), 3)
    np.testing.assert_allclose(looked.weights.sum(axis=1), 1.0, atol=1e-5)


def test_a_translation_that_was_made_is_looked_at_as_it_was_said(folders):
    model = Translator(load_folder(folders["transformer"]))
    (found,) = model.translate(["hund rot"], alignment=True)
    again = model.looked("hund rot")
    np.testing.assert_allclose(found.alignment.weights, again.weights, atol=1e-7)
    assert (found.alignment.source, found.alignment.target) == (again.source, again.target)
    (plain,) = model.translate(["hund rot"])
    assert plain.alignment is None
    (parts,) = model.translate(["hund rot. " * 20], alignment=True)
    assert parts.alignment is None
    lstm = Translator(load_folder(folders["lstm"]))
    assert next(lstm.translate(["hund"], alignment=True)).alignment is None
    with pytest.raises(
        DataError, match="the translation has 40 tokens; the model generates at most 23"
    ):
        model.looked("hund", "dog " * 40)


def test_a_decoder_with_one_context_looks_at_no_word(folders):
    model = Translator(load_folder(folders["lstm"]))
    with pytest.raises(DataError, match="no attention over the source"):
        model.looked("hund")


def test_the_picture_has_a_field_for_each_pair_of_words(folders):
    looked = Translator(load_folder(folders["attention"])).looked("hund rot", "red dog")
    picture = alignment_svg(looked)
    assert picture.count("<title>") == len(looked.source) * len(looked.target)


def test_words_in_the_picture_are_never_markup():
    looked = WordAlignment(["hund & rot"], ["<dog>"], np.ones((1, 1), np.float32))
    picture = alignment_svg(looked)
    assert "<dog>" not in picture
    assert "&lt;dog&gt;" in picture
    assert "hund &amp; rot" in picture


def test_scores_are_sacrebleus_on_lower_cased_text(folders, tmp_path):
    import sacrebleu

    model, pairs = Model.load(folders["transformer"]), toy_pairs(20, seed=5)
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(pairs)))
    scores, _, found = evaluate_file(model, [path], Columns())
    said = [own.text for own in found]
    truth = [[pair.target.upper() for pair in pairs]]
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(said, truth, lowercase=True).score)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))


def test_a_recurrent_encoder_has_no_attention_to_look_at(folders):
    with pytest.raises(SettingsError, match="its layers are lstm, which have no attention"):
        Model.load(folders["lstm"]).attention("hund")


def test_any_encoder_embeds(folders):
    for path in folders.values():
        vectors = Model.load(path).embed(["hund", "katze rot"])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_what_is_made_for_encoders_refuses_translators_in_one_line(folders, tmp_path):
    model = Model.load(folders["lstm"])
    for make in (
        lambda: compile_model(model, tmp_path / "c", [str(i) for i in range(200)], int8=True),
        lambda: export_onnx(load_folder(folders["transformer"]), tmp_path / "e"),
    ):
        with pytest.raises(SettingsError, match="can only be made of Transformer encoders"):
            make()
    with pytest.raises(SettingsError, match="its layers are lstm"):
        gradient_times_input(model, "hund")
