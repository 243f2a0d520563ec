"""Translation: pairs in rows, words that are forced or free, and networks that learn them."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import tiny_translator
from unmask.data.parallel import Pair
from unmask.errors import SettingsError
from unmask.model import fast
from unmask.model.config import SearchSettings
from unmask.model.rows import texts_of
from unmask.settings import build
from unmask.tasks import engine
from unmask.tasks.translate import (
    ANSWERS,
    FORCED,
    INDEX,
    NAME,
    OWNER,
    PLACES,
    WORDS,
    Tokenizers,
    Tokens,
    Translate,
    TranslateSettings,
    batch_of,
    perplexity,
    said_of,
    states_of,
    with_forcing,
)
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.distributed import Processes
from unmask.train.optim import make_optimizer
from unmask.train.schedule import OptimizerSettings
from unmask.train.step import Piece, Trainee, take_step

SOURCE = "ein eine mann frau hund katze sitzt steht auf der matte ##n . , -".split()
TARGET = "a the man woman dog cat sits stands on mat ##s . ' s - un ##want ##ed ##".split()
PAIRS = [
    ("ein mann sitzt .", "a man sits ."),
    ("eine frau steht auf der matte .", "a woman stands on the mat ."),
    ("hund , katze", "dog"),
    ("der hund sitzt auf der matte .", "the dog sits on the mat ."),
    ("katze", "the cat stands ."),
]
KINDS = {
    "transformer": ({}, {}),
    "transformer pre-norm": ({}, {"norm": "pre", "positions": "rotary"}),
    "lstm word": ({"cell": "lstm", "feeds": "word"}, {"cell": "lstm"}),
    "gru both": ({"cell": "gru", "feeds": "both", "context": "mapped"}, {"cell": "gru"}),
    "gru attention": ({"cell": "gru", "feeds": "both", "attention": "additive"}, {"cell": "gru"}),
    "gru over a transformer": ({"cell": "gru", "feeds": "word", "attention": "dot"}, {}),
}


@pytest.fixture(scope="module")
def both():
    source = Tokenizer(Vocabulary([*SPECIALS, *SOURCE]))
    return Tokenizers(source, Tokenizer(Vocabulary([*SPECIALS, *TARGET])))


@pytest.fixture(scope="module")
def tokens(both):
    return list(both.tokens(Pair(s, t, "here") for s, t in PAIRS))


def translator(kind, both, **changes):
    own, encoder = KINDS[kind]
    sizes = {"vocab_size": len(both.source.vocabulary), **encoder, **changes}
    return tiny_translator({"vocab_size": len(both.target.vocabulary), **own}, **sizes)


def test_a_target_is_heard_from_its_beginning_and_answered_to_its_end(both, tokens):
    said = both.target.vocabulary
    heard = [said.tokens[i] for i in tokens[0].heard]
    answers = [said.tokens[i] for i in tokens[0].answers]
    assert heard == ["[CLS]", "a", "man", "sits", "."]
    assert answers == ["a", "man", "sits", ".", "[SEP]"]
    read = [both.source.vocabulary.tokens[i] for i in tokens[0].source]
    assert read == ["[CLS]", "ein", "mann", "sitzt", ".", "[SEP]"]


def test_a_source_without_a_target_is_only_read(both):
    (own,) = both.tokens([Pair("ein mann", None, "here")])
    assert not own.target
    assert own.ids == own.source
    assert not batch_of([own], pad_id=0).labels


def test_the_longer_side_decides_the_room(tokens):
    assert [len(own.ids) for own in tokens] == [6, 9, 5, 9, 5]
    assert len(tokens[4].ids) == len(tokens[4].heard)


def test_both_sides_of_a_pair_lie_in_the_same_row_with_the_same_owner(tokens, monkeypatch):
    monkeypatch.setattr(engine, "rows_of", lambda lengths: [[1, 4], [3, 0], [2]])
    batch = batch_of(tokens, pad_id=0)
    heard = batch.labels
    sources, targets = texts_of(batch.owner, batch.index), texts_of(heard[OWNER], heard[INDEX])
    for number, pair in enumerate([1, 4, 3, 0, 2]):
        source, target = tokens[pair].source, tokens[pair].heard
        assert sources.apart(batch.tokens)[number, : len(source)].tolist() == source
        assert targets.apart(heard[WORDS])[number, : len(target)].tolist() == target
    rows = [sorted(set(owner.tolist()) - {-1}) for owner in batch.owner]
    assert rows == [sorted(set(owner.tolist()) - {-1}) for owner in heard[OWNER]]
    assert rows == [[0, 1], [0, 1], [0]]


def test_answers_are_in_the_order_of_their_places(tokens, monkeypatch):
    monkeypatch.setattr(engine, "rows_of", lambda lengths: [[1, 4], [3, 0], [2]])
    batch = batch_of(tokens, pad_id=0)
    expected = [word for pair in (1, 4, 3, 0, 2) for word in tokens[pair].answers]
    assert batch.labels[ANSWERS].tolist() == expected
    assert batch.counts == {NAME: len(expected)}
    heard = batch.labels[WORDS].flatten()[batch.labels[PLACES]].tolist()
    assert heard == [word for pair in (1, 4, 3, 0, 2) for word in tokens[pair].heard]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_batch_is_the_sum_of_its_pairs(kind, both, tokens, monkeypatch):
    network, task = translator(kind, both), Translate(TranslateSettings())
    monkeypatch.setattr(engine, "rows_of", lambda lengths: [[0]] * len(lengths))
    alone = [task(network, batch_of([own], pad_id=0))[NAME] for own in tokens]
    for rows in ([[1, 4], [3, 0], [2]], [[0], [1], [2], [3], [4]], [[4, 3, 2, 1, 0]]):
        monkeypatch.setattr(engine, "rows_of", lambda lengths, rows=rows: rows)
        together = task(network, batch_of(tokens, pad_id=0))[NAME]
        torch.testing.assert_close(together, torch.stack(alone).sum(), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_cross_entropy_smoothed_in_training_only(kind, both, tokens):
    network = translator(kind, both, dropout=0.0, attention_dropout=0.0)
    task, batch = Translate(TranslateSettings(smoothing=0.2)), batch_of(tokens, pad_id=0)
    scores, answers = network.word_scores(states_of(network, batch)), batch.labels[ANSWERS]
    for training, smoothing in ((False, 0.0), (True, 0.2)):
        network.train(training)
        loss = task(network, batch)[NAME]
        expected = F.cross_entropy(scores, answers, reduction="sum", label_smoothing=smoothing)
        torch.testing.assert_close(loss, expected, atol=1e-3, rtol=1e-5)


def test_the_loss_is_summed_over_all_words_whatever_the_batches(both, tokens, monkeypatch):
    network, task = translator("gru both", both), Translate(TranslateSettings())
    whole, count = task.loss(network, tokens, 0)
    monkeypatch.setattr(engine, "BATCH_TOKENS", 10)
    assert task.loss(network, tokens, 0) == (pytest.approx(whole, rel=1e-5), count)
    total = float(task(network, batch_of(tokens, pad_id=0))[NAME].detach())
    assert whole == pytest.approx(total, rel=1e-5)
    assert count == sum(len(own.answers) for own in tokens)
    assert task.loss(network, [], 0) == (0.0, 0)
    assert perplexity(0.0) == 1.0
    assert perplexity(1e9) == perplexity(100.0)


RECURRENT = [kind for kind in KINDS if "transformer" not in kind.split()[:1]]


@pytest.mark.parametrize("kind", RECURRENT)
def test_forcing_every_word_step_by_step_is_forcing_all_at_once(kind, both, tokens):
    network = translator(kind, both)
    batch = batch_of(tokens, pad_id=0)
    assert with_forcing(batch, TranslateSettings(), 0.5, 1) is batch
    how = TranslateSettings(forcing=1.0, forcing_end=0.0)
    forced = with_forcing(batch, how, 0.0, seed=1)
    assert forced.labels[FORCED].all()
    torch.testing.assert_close(
        states_of(network, forced), states_of(network, batch), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", RECURRENT)
def test_who_is_never_forced_hears_only_its_own_words(kind, both, tokens):
    network, how = translator(kind, both), TranslateSettings(forcing=0.0)
    batch = with_forcing(batch_of(tokens, pad_id=0), how, 0.0, seed=1)
    assert not batch.labels[FORCED].any()
    free = states_of(network, batch)
    begins = batch.labels[INDEX] == 0
    batch.labels[WORDS][~begins] = 7
    assert torch.equal(states_of(network, batch), free)


def test_one_draw_for_each_sentence_forces_all_of_it_or_nothing(both, tokens):
    how = TranslateSettings(forcing=0.5, forcing_by="sentence")
    seen = set()
    for seed in range(20):
        batch = with_forcing(batch_of(tokens, pad_id=0), how, 0.0, seed)
        texts = texts_of(batch.labels[OWNER], batch.labels[INDEX])
        forced, real = texts.apart(batch.labels[FORCED]), texts.real()
        for own, inside in zip(forced, real, strict=True):
            assert own[inside].all() or not own[inside].any()
        seen.add(tuple(forced[:, 0].tolist()))
    assert len(seen) > 10, "each sentence by itself"


def test_words_are_forced_by_themselves_as_often_as_wanted(both, tokens):
    batch, how = batch_of(tokens * 100, pad_id=0), TranslateSettings(forcing=0.3)
    forced = with_forcing(batch, how, 0.0, seed=5).labels[FORCED]
    assert float(forced.float().mean()) == pytest.approx(0.3, abs=0.02)
    apart = texts_of(batch.labels[OWNER], batch.labels[INDEX]).apart(forced)
    assert len({tuple(own.tolist()) for own in apart}) > 50


@pytest.mark.parametrize("by", ["step", "sentence"])
def test_the_seed_alone_decides_who_is_forced(by, both, tokens):
    batch, how = batch_of(tokens, pad_id=0), TranslateSettings(forcing=0.5, forcing_by=by)

    def drawn(seed):
        torch.rand(3)  # the generator that all share
        return with_forcing(batch, how, 0.0, seed).labels[FORCED]

    assert torch.equal(drawn(1), drawn(1))
    assert any(not torch.equal(drawn(1), drawn(seed)) for seed in range(2, 6))


def test_forcing_moves_evenly_to_its_end():
    how = TranslateSettings(forcing=1.0, forcing_end=0.2)
    assert [how.forced(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1.0, 0.8, 0.6, 0.2])
    assert TranslateSettings(forcing=0.4).forced(0.9) == pytest.approx(0.4)
    assert TranslateSettings().always
    assert TranslateSettings(forcing_end=1.0).always
    assert not how.always


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"forcing_by": "sentence"}, "forcing_by is set, but every word is forced; lower forcing"),
        ({"forcing": 1.5}, "'forcing' is 1.5; input should be less than or equal to 1"),
        ({"forcing_end": -0.1}, "'forcing_end' is -0.1; input should be greater"),
        ({"smoothing": 1.0}, "'smoothing' is 1.0; input should be less than 1"),
        ({"forcing_by": "word"}, "'forcing_by' is 'word'; input should be 'step' or 'sentence'"),
        ({"search": {"beam": 2}}, r"\[search\]: unknown key 'beam'; did you mean 'beams'"),
        ({"search": {"seed": 2}}, "seed is set, but nothing is drawn"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_should_be(settings, message):
    with pytest.raises(SettingsError, match=message):
        build(TranslateSettings, settings, where="recipe [task]")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("the man ' s un ##want ##ed cat ##s .", "the man's unwanted cats."),
        ("##want ##ed dog", "wanted dog"),
        ("dog ## cat", "dog ## cat"),
        ("", ""),
    ],
)
def test_what_is_said_is_written_with_its_pieces_joined(both, said, text):
    assert both.text([both.target.vocabulary.ids[word] for word in said.split()]) == text


def test_no_special_token_but_the_end_is_ever_said(both):
    marks, ids = both.marks, both.target.vocabulary.ids
    assert (marks.begin, marks.end) == (ids["[CLS]"], ids["[SEP]"])
    assert set(marks.never) == {ids[s] for s in SPECIALS} - {marks.end}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_answered_in_their_order_whatever_their_rows(kind, both, tokens, monkeypatch):
    network = translator(kind, both, init_std=0.5)
    for how in (SearchSettings(longest=6), SearchSettings(longest=6, sample=True)):
        monkeypatch.setattr(engine, "rows_of", lambda lengths: [[i] for i in range(len(lengths))])
        alone = [said_of(network, [own], both, how, [n])[0] for n, own in enumerate(tokens)]
        for rows in ([[4, 3], [1], [0, 2]], [[3, 0, 4, 1, 2]]):
            monkeypatch.setattr(engine, "rows_of", lambda lengths, rows=rows: rows)
            together = said_of(network, tokens, both, how, range(5))
            assert [one.words for one in together] == [one.words for one in alone]


def test_a_text_as_long_as_the_decoder_holds_can_be_said_to_its_end(both):
    """As many steps as there are positions: the words, and the end."""
    own = {"max_length": 4, "vocab_size": len(both.target.vocabulary)}
    network = tiny_translator(own, vocab_size=len(both.source.vocabulary))
    with torch.no_grad():
        network.decoder.bias[7] = 1e4
    (found,) = said_of(network, [Tokens([2, 3])], both, SearchSettings())
    assert found.words == [7, 7, 7, 7]


def test_translations_are_scored_as_sacrebleu_does(both):
    pytest.importorskip("sacrebleu")
    task = Translate(TranslateSettings())
    truth = ["A man sits on the mat today.", "The dog stands on the big mat."]
    perfect = task.score([text.lower() for text in truth], truth)
    assert perfect == pytest.approx({"bleu": 100.0, "chrf": 100.0})
    pairs = [Pair("eins", truth[0], "a:1"), Pair("zwei", truth[1], "a:2")]
    detail = task.detail(pairs, [truth[0].upper(), "nothing of it"])
    assert [mistake.where for mistake in detail.mistakes] == ["a:2", "a:1"]
    assert detail.mistakes[1].badness == pytest.approx(0.0)


@pytest.mark.parametrize("fused", [True, False])
def test_the_loss_of_words_is_the_same_without_the_fast_way(fused, both, tokens, monkeypatch):
    network = translator("transformer", both).train()
    states = torch.randn(7, 16, requires_grad=True)
    answers = torch.tensor([5, 6, 7, 8, 9, 10, 11])
    if not fused:
        monkeypatch.setattr(fast, "usable", lambda x: False)
    loss = network.word_loss(states, answers, 0.1)
    expected = F.cross_entropy(
        network.word_scores(states), answers, reduction="sum", label_smoothing=0.1
    )
    inputs = [states, network.decoder.tokens.weight, network.decoder.bias]
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-5)
    for one, two in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-5)


LEARNERS = {
    "lstm word": KINDS["lstm word"],
    "gru both": KINDS["gru both"],
    "gru attention both": KINDS["gru attention"],
    "gru attention word": (
        {"cell": "gru", "feeds": "word", "attention": "general"},
        {"cell": "gru"},
    ),
    "transformer": ({}, {"norm": "pre"}),
}


@pytest.mark.parametrize("kind", LEARNERS)
def test_four_pairs_are_learned_by_heart(kind, both, tokens):
    own, encoder = LEARNERS[kind]
    sizes = {"vocab_size": len(both.source.vocabulary), "dropout": 0.0, "attention_dropout": 0.0}
    own = {"vocab_size": len(both.target.vocabulary), "layers": 1, **own}
    network = tiny_translator(own, layers=1, **encoder, **sizes)
    learner = Trainee(network, Translate(TranslateSettings(smoothing=0.0))).train()
    optimizer = make_optimizer(learner, OptimizerSettings(rate=2e-2, decay=0.0))
    batch = batch_of(tokens[:4], pad_id=0)
    for step in itertools.count():
        assert step < 300, "it does not learn"
        piece = Piece(batch, step)
        report = take_step(learner, [piece], optimizer, Processes(), terms=[NAME], clip=1.0)
        if report.loss < 0.05:
            break
    network.eval()
    for how in (SearchSettings(), SearchSettings(beams=3)):
        said = [both.text(one.words) for one in said_of(network, tokens[:4], both, how)]
        assert said == [both.text(own.answers[:-1]) for own in tokens[:4]]
