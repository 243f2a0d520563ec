"""Training a translator: the same loop and folders; words are learned from the pairs."""

import json

import pytest
import torch

from tests.conftest import tiny_network
from tests.pairs import RECURRENT, TRANSFORMER, toy_pairs, write_pairs
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.data.parallel import Pair
from unmask.errors import DataError, SettingsError
from unmask.model.decoder import Decoder
from unmask.settings import build, read_toml
from unmask.tasks.translate import Tokenizers
from unmask.train.compare import Comparison, compare, train_files
from unmask.train.distributed import Processes
from unmask.train.pairs import Files, PairData, read_data
from unmask.train.recipe import recipes_folder
from unmask.train.run import read_metrics
from unmask.train.translation import Translation, VocabularySettings, fitting, learned
from unmask.train.tuning import Shuffled, compose_tuning
from unmask.use.translate import Translator

PAIRS = PairData(toy_pairs(200), toy_pairs(20, seed=1))


def trained(out, recipe="transformer", changes=TRANSFORMER, **how):
    return train_files(PAIRS, out, recipe, changes, **{"notice": lambda line: None, **how})


def recipe_of(name, changes):
    table = compose_tuning(name, changes, kind="translate", what="recipe")
    return build(Translation, table, where="recipe")


@pytest.mark.slow
def test_a_transformer_learns_a_toy_language_and_its_folder_translates(tmp_path):
    pairs = toy_pairs(100)
    changes = [*TRANSFORMER, "tune.epochs=60.0", "optimizer.rate=3e-3"]
    data = PairData(pairs, pairs[:20])
    scores = train_files(data, tmp_path / "run", "transformer", changes, notice=lambda line: None)
    assert scores["bleu"] > 90
    model = Translator(load_folder(tmp_path / "run" / "model"))
    said = [own.text for own in model.translate(pair.source for pair in pairs)]
    assert sum(a == pair.target for a, pair in zip(said, pairs, strict=True)) >= 90


@pytest.mark.parametrize("recipe", ["lstm", "gru", "attention"])
def test_every_recurrent_recipe_trains_evaluates_and_is_read_again(tmp_path, recipe):
    scores = trained(tmp_path / "run", recipe, RECURRENT)
    assert {"bleu", "chrf", "perplexity", "step"} <= scores.keys()
    assert (tmp_path / "run" / "report.html").exists()
    model = Translator(load_folder(tmp_path / "run" / "model"))
    assert len(list(model.translate(["hund", "", "alt rot"]))) == 3


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path):
    trained(tmp_path / "whole", "gru", RECURRENT)
    steps = []

    def stop(position, report, done):
        steps.append(position.step)
        if len(steps) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", "gru", [*RECURRENT, "train.save_steps=5"], show=stop)
    trained(tmp_path / "parts", "gru", [*RECURRENT, "train.save_steps=5"], resume=True)
    whole, parts = (load_folder(tmp_path / name / "model") for name in ("whole", "parts"))
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, parts.network.state_dict()[name]), name
    assert whole.tokenizer.digest() == parts.tokenizer.digest()


def test_a_bert_may_be_the_encoder_and_brings_its_words(tmp_path, tokenizer):
    save_folder(tmp_path / "bert", tiny_network(), tokenizer)
    pairs = PairData(
        [Pair("the cat sat", "die katze", "1"), Pair("a dog", "ein hund", "2")] * 20,
        [Pair("the dog", "der hund", "1")],
    )
    changes = ["tune.batch=10", "tune.epochs=1.0", "train.evaluations=1", "vocabulary.size=40"]
    how = {"model": tmp_path / "bert", "notice": lambda line: None}
    train_files(pairs, tmp_path / "run", "transformer", [*changes, "vocabulary.joint=false"], **how)
    made = load_folder(tmp_path / "run" / "model")
    assert made.tokenizer.digest() == tokenizer.digest()
    assert made.target.digest() != tokenizer.digest()
    assert isinstance(made.network.decoder, Decoder)
    with pytest.raises(SettingsError, match=r"joint: the given model has words of its own"):
        train_files(pairs, tmp_path / "no", "transformer", changes, **how)


def test_one_vocabulary_or_two_are_learned_from_the_pairs():
    both = learned(PAIRS.train, VocabularySettings(size=60))
    assert both.source is both.target
    apart = learned(PAIRS.train, VocabularySettings(size=60, joint=False))
    assert "hund" in apart.source.vocabulary
    assert "hund" not in apart.target.vocabulary
    assert "dog" in apart.target.vocabulary


def test_accents_are_kept_unless_told_otherwise():
    pairs = [Pair("übung", "exercise", "1")] * 3
    kept = learned(pairs, VocabularySettings(size=60))
    assert kept.text(kept.target.encode("übung").ids[1:-1]) == "übung"
    bare = learned(pairs, VocabularySettings(size=60, accents=False))
    assert bare.text(bare.target.encode("übung").ids[1:-1]) == "ubung"


def test_pairs_that_are_too_long_are_left_out_and_the_first_is_named(tmp_path):
    words = learned(PAIRS.train, VocabularySettings(size=60))
    long = Pair("hund " * 30, "dog", "far:7")
    kept, left = fitting([PAIRS.train[0], long], words, 16)
    assert len(kept) == 1
    assert left == [long]
    said = []
    data = PairData([*PAIRS.train, long], PAIRS.dev)
    changes = [*TRANSFORMER, "tune.length=16"]
    train_files(data, tmp_path / "run", "transformer", changes, notice=said.append)
    assert any(line.startswith("far:7: the first of 1 of 201 pairs with more") for line in said)
    with pytest.raises(DataError, match="no pair has at most 16 tokens on both sides"):
        train_files(PairData([long], PAIRS.dev), tmp_path / "no", "transformer", changes)


def test_steps_are_made_of_pairs_of_like_length_and_every_epoch_of_all_pairs():
    words = learned(PAIRS.train, VocabularySettings(size=60))
    tokens, _ = fitting(PAIRS.train, words, 32)
    recipe = recipe_of("gru", RECURRENT)
    source = Shuffled(tokens, lambda some, seed, progress: some, recipe, Processes(), neighbours=5)
    taken, cursor, spans = [], {}, []
    for step in range(10):
        pieces, cursor = source.pieces(cursor, step, 0.0)
        some = [own for piece in pieces for own in piece.batch]
        lengths = [len(own.ids) for own in some]
        spans.append(max(lengths) - min(lengths))
        taken += some
    assert sorted(map(id, taken)) == sorted(map(id, tokens))
    assert cursor == {"epoch": 1, "row": 0}
    assert sum(spans) / len(spans) < 2 < max(len(own.ids) for own in tokens) - 3


def test_processes_compute_as_many_parts_and_none_is_empty():
    words = learned(PAIRS.train, VocabularySettings(size=60))
    tokens, _ = fitting(PAIRS.train[:3], words, 32)
    recipe = recipe_of("gru", [*RECURRENT, "tune.batch=3", "train.micro_tokens=1"])
    parts = []
    for rank in range(2):
        source = Shuffled(tokens, lambda some, seed, progress: some, recipe, Processes(rank, 2))
        pieces, _ = source.pieces({}, 0, 0.0)
        parts.append([piece.batch for piece in pieces])
    assert len(parts[0]) == len(parts[1])
    assert all(some for own in parts for some in own)
    assert sum(len(some) for own in parts for some in own) == 3


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        ("transformer", "task.forcing=0.5", "a Transformer is trained on the truth"),
        ("gru", "decoder.vocab_size=7", r"\[decoder\]: vocab_size is what the vocabularies are"),
        ("transformer", "tune.length=4096", "the model holds 128 tokens"),
        ("transformer", "tune.layers=[1]", "a decoder reads the last layer"),
        ("gru", "model.heads=2", "heads is 2, and a layer of gru has none"),
        ("transformer", "decoder.feeds=word", "feeds is set, but a Transformer does not read it"),
        ("lstm", "decoder.feeds=nothing", None),
    ],
)
def test_settings_that_cannot_be_are_named(tmp_path, recipe, change, message):
    changes = [*(TRANSFORMER if recipe == "transformer" else RECURRENT), change]
    if message is None:
        trained(tmp_path / "run", recipe, changes)
        return
    with pytest.raises(SettingsError, match=message):
        trained(tmp_path / "run", recipe, changes)


def test_forcing_below_one_is_for_decoders_that_hear_words(tmp_path):
    with pytest.raises(SettingsError, match="this decoder is fed no word"):
        trained(tmp_path / "a", "lstm", [*RECURRENT, "decoder.feeds=nothing", "task.forcing=0.5"])
    trained(tmp_path / "b", "lstm", [*RECURRENT, "task.forcing=1.0", "task.forcing_end=0.0"])


def test_files_come_as_a_folder_or_by_name(tmp_path):
    folder = write_pairs(tmp_path / "data")
    data = read_data(Files(folder, "xx", "yy"))
    assert (len(data.train), len(data.dev)) == (200, 20)
    named = read_data(
        Files(
            train=[folder / "train.xx", folder / "train.yy"],
            dev=[folder / "val.xx", folder / "val.yy"],
        )
    )
    assert [pair.key for pair in named.train] == [pair.key for pair in data.train]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (lambda f: Files(f), "need --from and --to"),
        (lambda f: Files(f, "xx", "yy", train=[f / "train.xx"]), "give one or the other"),
        (lambda f: Files(), "nothing to learn from: need a folder"),
        (lambda f: Files(f, "xx", "zz"), "zz"),
    ],
)
def test_files_that_are_not_enough_are_named(tmp_path, files, message):
    folder = write_pairs(tmp_path / "data")
    with pytest.raises((SettingsError, DataError), match=message):
        read_data(files(folder))


def test_variants_are_compared_in_one_figure_and_finished_ones_stay(tmp_path):
    folder = write_pairs(tmp_path / "data")
    recipe = tmp_path / "compare.toml"
    recipe.write_text(
        f'out = "{tmp_path / "out"}"\nfolder = "{folder}"\nsource = "xx"\ntarget = "yy"\n'
        f"set = {json.dumps([*RECURRENT, 'task.forcing=0.9'])}\n"
        + "".join(
            f'[[variants]]\nname = "{name}"\nrecipe = "gru"\nset = ["task.forcing={name}"]\n'
            for name in ("1.0", "0.5")
        )
    )
    rows = compare(recipe, notice=lambda line: None)
    assert [row["variant"] for row in rows] == ["1.0", "0.5"]
    figure = (tmp_path / "out" / "compare.svg").read_text()
    assert "Held-out BLEU" in figure
    assert "million words" in figure
    assert "0.5" in figure
    said = []
    before = read_metrics(tmp_path / "out" / "1.0")
    assert compare(recipe, notice=said.append) == rows
    assert said == ["1.0: is there already", "0.5: is there already"]
    assert read_metrics(tmp_path / "out" / "1.0") == before


def test_variants_need_names_of_their_own(tmp_path):
    path = tmp_path / "twice.toml"
    path.write_text(
        'out = "x"\n[[variants]]\nname = "a"\nrecipe = "gru"\n[[variants]]\nname = "a"\n'
        'recipe = "gru"\n'
    )
    with pytest.raises(SettingsError, match="need one at least, and other names"):
        build(Comparison, read_toml(path), where=str(path))


def test_given_words_are_used_as_they_are(tmp_path):
    words = learned(PAIRS.train, VocabularySettings(size=50))
    assert isinstance(words, Tokenizers)
    with pytest.raises(SettingsError, match="without --vocabulary"):
        trained(tmp_path / "run", target_vocabulary=tmp_path)


@pytest.mark.parametrize(
    "path", sorted((recipes_folder() / "compare").glob("*.toml")), ids=lambda path: path.stem
)
def test_every_comparison_that_comes_with_unmask_can_be_asked_for(path):
    asked = build(Comparison, read_toml(path), where=str(path))
    for variant in asked.variants:
        recipe = recipe_of(variant.recipe, [*asked.set, *variant.set])
        assert recipe.tune.epochs
