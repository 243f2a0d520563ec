"""Training a translator: the same loop and folders; words are learned from the pairs."""

import json
from dataclasses import replace

import pytest
import torch

from tests.conftest import tiny_network
from tests.jobs.small import At
from tests.pairs import RECURRENT, TRANSFORMER, toy_pairs, write_pairs
from tests.train.conftest import Heard, metrics
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.data.labelled.parallel import Pair
from unmask.data.labelled.parallel_files import PairFiles
from unmask.evaluation.tasks import Labelled
from unmask.infer.translate import Translator
from unmask.jobs.compare import compare
from unmask.jobs.comparison import read_comparison
from unmask.jobs.finetune import Finetune
from unmask.jobs.inputs import vocabularies as learning
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.inputs.vocabularies import GivenVocabularies
from unmask.jobs.settings_read import TRANSLATE
from unmask.model.decoding.decoder import Decoder
from unmask.objectives.next_token import PairTokens
from unmask.system.distributed import Processes
from unmask.system.errors import DataError, FolderError, SettingsError
from unmask.tasks.translate import Translate, TranslateSettings, detokenized
from unmask.text.tokens import Tokenizers
from unmask.train.compose import compose, recipes_folder
from unmask.train.recipe import TokenizerSettings
from unmask.train.run import Run, RunOptions
from unmask.train.run_folder import read_metrics
from unmask.train.sources import Dealer, ShuffledWindows

TRAIN, DEV = toy_pairs(200), toy_pairs(20, seed=1)
TASK = Translate(TranslateSettings())
BRIEF = [*TRANSFORMER, "schedule.epochs=0.2", "evaluate.times=1"]  # two steps


def trained(
    out,
    recipe="transformer",
    changes=TRANSFORMER,
    *,
    data=(TRAIN, DEV),
    console=None,
    model=None,
    given=GivenVocabularies(),
    **how,
):
    """The scores of the best step."""
    chosen = compose(TRANSLATE, recipe, changes)
    if isinstance(data, tuple):
        settings = chosen.task.settings
        task = Translate(settings) if isinstance(settings, TranslateSettings) else TASK
        data = Labelled(task, *data)
    job = Finetune(model, data, given, scope=TRANSLATE)
    return Run(job, chosen, out, console, RunOptions(**how)).go().summary


def recipe_of(name, changes):
    return compose(TRANSLATE, name, changes)


def learned(pairs, settings) -> Tokenizers:
    """Vocabularies of both sides."""
    return learning.learn_tokenizers(TASK, pairs, settings)


def fitting(pairs, words, limit) -> tuple[list[PairTokens], list[Pair]]:
    """The tokens of pairs that fit, and those that are too long."""
    found = list(TASK.windows(pairs, replace(words, max_length=limit), learn=True))
    kept = [window for _, own in found for window in own]
    return kept, [pair for pair, own in found if not own]


@pytest.mark.slow
def test_a_transformer_learns_a_toy_language_and_its_folder_translates(tmp_path):
    pairs = toy_pairs(100)
    changes = [*TRANSFORMER, "schedule.epochs=90.0", "optimizer.learning_rate=3e-3"]
    scores = trained(tmp_path / "run", changes=changes, data=(pairs, pairs[:20]))
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

    def stop():
        raise KeyboardInterrupt

    changes = [*RECURRENT, "loop.save_steps=5"]
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", "gru", changes, console=At(7, stop))
    assert not (tmp_path / "parts" / "model").exists()
    trained(tmp_path / "parts", "gru", changes, resume=True)
    whole, parts = (load_folder(tmp_path / name / "model") for name in ("whole", "parts"))
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, parts.network.state_dict()[name]), name
    assert whole.tokenizer.digest() == parts.tokenizer.digest()


def test_a_bert_may_be_the_encoder_and_brings_its_words(tmp_path, tokenizer):
    save_folder(tmp_path / "bert", tiny_network(), tokenizer)
    pairs = (
        [Pair("the cat sat", "die katze", "1"), Pair("a dog", "ein hund", "2")] * 20,
        [Pair("the dog", "der hund", "1")],
    )
    changes = ["loop.batch_size=10", "schedule.epochs=1.0", "evaluate.times=1", "tokenizer.size=40"]
    how = {"data": pairs, "model": tmp_path / "bert"}
    trained(tmp_path / "run", changes=[*changes, "tokenizer.joint=false"], **how)
    made = load_folder(tmp_path / "run" / "model")
    assert made.tokenizer.digest() == tokenizer.digest()
    assert made.target.digest() != tokenizer.digest()
    assert isinstance(made.network.heads["decoder"], Decoder)
    assert made.manifest["provenance"]["model"] == "bert"
    with pytest.raises(SettingsError, match=r"joint: the given model has its own vocabulary"):
        trained(tmp_path / "no", changes=changes, **how)


def test_one_vocabulary_or_two_are_learned_from_the_pairs():
    both = learned(TRAIN, TokenizerSettings(size=60))
    assert both.source is both.target
    apart = learned(TRAIN, TokenizerSettings(size=60, joint=False))
    assert "hund" in apart.source.vocabulary
    assert "hund" not in apart.target.vocabulary
    assert "dog" in apart.target.vocabulary


def test_accents_are_kept_unless_told_otherwise():
    pairs = [Pair("übung", "exercise", "1")] * 3
    kept = learned(pairs, TokenizerSettings(size=60))
    assert detokenized(kept.target.encode("übung").ids[1:-1], kept) == "übung"
    bare = learned(pairs, TokenizerSettings(size=60, accents=False))
    assert detokenized(bare.target.encode("übung").ids[1:-1], bare) == "ubung"


def test_pairs_that_are_too_long_are_skipped_and_the_first_is_named(tmp_path):
    words = learned(TRAIN, TokenizerSettings(size=60))
    long = Pair("hund " * 30, "dog", "far:7")
    kept, left = fitting([TRAIN[0], long], words, 16)
    assert len(kept) == 1
    assert left == [long]
    heard = Heard()
    data = ([*TRAIN, long], DEV)
    changes = [*TRANSFORMER, "tokenizer.max_length=16"]
    trained(tmp_path / "run", changes=changes, data=data, console=heard)
    (line,) = [line for line in heard.said if line.startswith("1 of 201 examples are skipped")]
    assert line.endswith("more than 16 tokens; the first one is far:7")
    with pytest.raises(DataError, match="no example has at most 16 tokens"):
        trained(tmp_path / "no", changes=changes, data=([long], DEV))


def test_steps_are_made_of_pairs_of_like_length_and_every_epoch_of_all_pairs():
    words = learned(TRAIN, TokenizerSettings(size=60))
    tokens, _ = fitting(TRAIN, words, 32)
    source = shuffled(tokens, RECURRENT, neighbours=5)
    taken, cursor, spans = [], {}, []
    for step in range(10):
        pieces, cursor = source.plan_step(cursor, step, 0.0)
        some = [number for piece in pieces for number in piece.make().number.tolist()]
        lengths = [len(tokens[number].ids) for number in some]
        spans.append(max(lengths) - min(lengths))
        taken += some
    assert sorted(taken) == list(range(len(tokens)))
    assert cursor == {"epoch": 1, "row": 0}
    assert sum(spans) / len(spans) < 2 < max(len(own.ids) for own in tokens) - 3


def shuffled(tokens, changes, **how):
    """The source of a translation run for these pairs."""

    words = learned(TRAIN, TokenizerSettings(size=60))

    def lay_out(some):
        return TASK.batch(some, words)

    items, objective = [[own] for own in tokens], TASK.objective
    return ShuffledWindows(items, lay_out, objective, recipe_of("gru", changes), **how)


def test_processes_compute_as_many_parts_and_none_is_empty():
    words = learned(TRAIN, TokenizerSettings(size=60))
    tokens, _ = fitting(TRAIN[:3], words, 32)
    changes = ["loop.batch_size=3", "loop.micro_batch_tokens=1", "loop.micro_batches=2"]
    source = shuffled(tokens, [*RECURRENT, *changes])
    dealt = [Dealer(source, Processes(rank, 2)).take({}, 0, 0.0) for rank in range(2)]
    parts = [[piece.batch.number.tolist() for piece in own.micro_batches] for own in dealt]
    assert len(parts[0]) == len(parts[1]) == dealt[0].rounds == dealt[1].rounds
    assert all(some for own in parts for some in own)
    assert sorted(number for own in parts for some in own for number in some) == [0, 1, 2]


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        ("transformer", "task.teacher_forcing=0.5", "all target tokens at once"),
        ("gru", "model.decoder.vocab_size=7", r"\[decoder\]: unknown key 'vocab_size'"),
        ("transformer", "tokenizer.max_length=4096", "the model reads at most 128 tokens"),
        (
            "transformer",
            "model.head_layers=[1]",
            "head_layers is set, but translate does not read it",
        ),
        ("gru", "task={name='ner'}", "ner needs a model to start from"),
        ("gru", "model.heads=2", "heads is 2, but gru layers do not use it"),
        (
            "transformer",
            "model.decoder.feeds=word",
            "feeds is set, but Transformer decoders do not use it",
        ),
        ("lstm", "model.decoder.feeds=nothing", None),
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
    with pytest.raises(SettingsError, match="this decoder reads no tokens"):
        trained(
            tmp_path / "a",
            "lstm",
            [*RECURRENT, "model.decoder.feeds=nothing", "task.teacher_forcing=0.5"],
        )
    trained(
        tmp_path / "b",
        "lstm",
        [*RECURRENT, "task.teacher_forcing=1.0", "task.final_teacher_forcing=0.0"],
    )


def test_files_come_as_a_folder_or_by_name(tmp_path):
    folder = write_pairs(tmp_path / "data")
    train, dev = PairFiles(folder, "xx", "yy").paths()
    data = LabelledFiles(train, dev).read(compose(TRANSLATE, "gru").task)
    assert (len(data.train), len(data.dev)) == (200, 20)
    named = PairFiles(
        train=[folder / "train.xx", folder / "train.yy"],
        dev=[folder / "val.xx", folder / "val.yy"],
    )
    assert [list(map(str, paths)) for paths in named.paths()] == [
        list(map(str, paths)) for paths in (train, dev)
    ]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (lambda f: PairFiles(f), "needs --from and --to"),
        (lambda f: PairFiles(f, "xx", "yy", train=[f / "train.xx"]), "give one or the other"),
        (lambda f: PairFiles(), "no training data: give a folder"),
        (lambda f: PairFiles(f, "xx", "zz"), "zz"),
    ],
)
def test_files_that_are_not_enough_are_named(tmp_path, files, message):
    folder = write_pairs(tmp_path / "data")
    with pytest.raises((SettingsError, DataError), match=message):
        files(folder).paths()


def test_variants_are_compared_in_one_figure_and_finished_ones_stay(tmp_path):
    folder = write_pairs(tmp_path / "data")
    recipe = tmp_path / "compare.toml"
    recipe.write_text(
        f'out = "{tmp_path / "out"}"\nfolder = "{folder}"\nsource = "xx"\ntarget = "yy"\n'
        f"set = {json.dumps([*RECURRENT, 'task.teacher_forcing=0.9'])}\n"
        + "".join(
            f'[[variants]]\nname = "{name}"\nrecipe = "gru"\n'
            f'set = ["task.teacher_forcing={name}"]\n'
            for name in ("1.0", "0.5")
        )
    )
    asked = read_comparison(recipe)
    rows = compare(asked, Heard())
    assert [row.variant for row in rows] == ["1.0", "0.5"]
    figure = (tmp_path / "out" / "compare.svg").read_text()
    assert "Held-out BLEU" in figure
    assert "million training tokens" in figure
    assert "0.5" in figure
    heard = Heard()
    before = read_metrics(tmp_path / "out" / "1.0")
    assert compare(asked, heard) == rows
    assert heard.said == ["1.0: already trained, skipped", "0.5: already trained, skipped"]
    assert read_metrics(tmp_path / "out" / "1.0") == before


def test_variants_need_names_of_their_own(tmp_path):
    path = tmp_path / "twice.toml"
    path.write_text(
        'out = "x"\n[[variants]]\nname = "a"\nrecipe = "gru"\n[[variants]]\nname = "a"\n'
        'recipe = "gru"\n'
    )
    with pytest.raises(SettingsError, match="need at least one variant, with unique names"):
        read_comparison(path)


def test_given_words_are_used_as_they_are(tmp_path):
    words = learned(TRAIN, TokenizerSettings(size=50, joint=False))
    trained(tmp_path / "run", changes=BRIEF, given=GivenVocabularies(vocabulary=words))
    made = load_folder(tmp_path / "run" / "model")
    assert made.tokenizer.digest() == words.source.digest()
    assert made.target.digest() == words.target.digest()
    with pytest.raises(SettingsError, match="--target-vocabulary needs --vocabulary"):
        trained(tmp_path / "no", given=GivenVocabularies(target=tmp_path))


@pytest.mark.parametrize(
    "path", sorted((recipes_folder() / "compare").glob("*.toml")), ids=lambda path: path.stem
)
def test_every_comparison_that_comes_with_unmask_can_be_asked_for(path):
    asked, heard = read_comparison(path), Heard()
    for variant in asked.variants:
        changes = [*asked.set, *variant.set]
        assert compose(TRANSLATE, variant.recipe, changes, console=heard).schedule.epochs
    assert not heard.said, "no name in it is out of date"


def test_a_translator_from_scratch_says_so_and_holds_what_both_of_its_sides_hold(tmp_path):
    changes = [*BRIEF, "model.max_length=24", "model.decoder.max_length=16", "loop.save_steps=1"]
    trained(tmp_path / "run", changes=changes)
    for place in ("model", "checkpoints/step-2", "best/step-2"):
        found = load_folder(tmp_path / "run" / place)
        assert found.manifest["provenance"]["model"] == "from scratch", place
        assert found.manifest["provenance"]["task"] == "translate", place
    manifest = load_folder(tmp_path / "run" / "model").manifest
    assert (manifest["task"]["name"], manifest["task"]["length"]) == ("translate", 16)
    other = [*BRIEF, "model.max_length=16", "model.decoder.max_length=24"]
    trained(tmp_path / "other", changes=other)
    assert load_folder(tmp_path / "other" / "model").manifest["task"]["length"] == 16


@pytest.fixture
def learnt(monkeypatch):
    """How often a vocabulary was learned; with `after`, something happens each time."""
    calls = []

    def learn(*arguments, **named):
        calls.append(None)
        for act in after:
            act()
        return learn_them(*arguments, **named)

    after: list = []
    learn_them = learning.learn_tokenizers
    monkeypatch.setattr(learning, "learn_tokenizers", learn)
    return calls, after


def test_a_folder_that_is_taken_is_refused_before_a_vocabulary_is_learned(tmp_path, learnt):
    calls, _ = learnt
    trained(tmp_path / "run", changes=BRIEF)
    assert len(calls) == 1
    with pytest.raises(FolderError, match="the folder already holds a run"):
        trained(tmp_path / "run", changes=BRIEF)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(FolderError, match="not empty and holds no run"):
        trained(tmp_path / "other", changes=BRIEF)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FolderError, match=r"\(a file\); need a folder"):
        trained(tmp_path / "file", changes=BRIEF)
    assert len(calls) == 1
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]


def test_a_resumed_run_learns_no_vocabulary_again(tmp_path, learnt):
    calls, _ = learnt
    trained(tmp_path / "run", changes=[*BRIEF, "loop.save_steps=1"])
    trained(tmp_path / "run", changes=[*BRIEF, "loop.save_steps=1"], resume=True)
    assert len(calls) == 1


@pytest.mark.parametrize(("seconds", "counted"), [(0.0, 0.0), (20.0, 20.0), (300.0, 30.0)])
def test_minutes_count_the_learning_of_the_vocabulary(tmp_path, learnt, clock, seconds, counted):
    """Of a minute, at most half may pass before the first step."""
    _, after = learnt
    after.append(lambda: setattr(clock, "now", clock.now + seconds))
    clock.tick = 0.05
    heard = Heard()
    plain = [change for change in TRANSFORMER if "epochs" not in change]
    changes = [*plain, "schedule.minutes=1.0", "evaluate.times=1"]
    trained(tmp_path / "run", changes=changes, console=heard)
    steps = metrics(tmp_path / "run")
    assert counted <= steps[0]["seconds"] < counted + 5
    assert 60 <= steps[-1]["seconds"] < 61
    told = any(line.startswith("set-up took 5.0 of 1 minutes") for line in heard.said)
    assert told == (seconds == 300.0)


def test_a_run_that_is_refused_leaves_nothing_behind(tmp_path):
    missing = LabelledFiles([tmp_path / "no.tsv"], [tmp_path / "no.tsv"])
    with pytest.raises(DataError, match=r"no\.tsv: no such file"):
        trained(tmp_path / "run", data=missing)
    assert not (tmp_path / "run").exists()
    with pytest.raises(
        SettingsError, match="the model reads at most 128 tokens"
    ):  # after some lines of log
        trained(tmp_path / "run", changes=[*TRANSFORMER, "tokenizer.max_length=4096"])
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_refused_leaves_what_is_not_its_own(tmp_path, learnt):
    _, after = learnt
    note = tmp_path / "run" / "note.txt"
    after.append(lambda: note.parent.is_dir() and note.write_text("mine"))
    with pytest.raises(SettingsError, match="the model reads at most 128 tokens"):
        trained(tmp_path / "run", changes=[*TRANSFORMER, "tokenizer.max_length=4096"])
    assert note.read_text() == "mine"
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(SettingsError, match="the model reads at most 128 tokens"):
        trained(mine, changes=[*TRANSFORMER, "tokenizer.max_length=4096"], console=Heard())
    assert mine.is_dir(), "a folder that was there stays"
