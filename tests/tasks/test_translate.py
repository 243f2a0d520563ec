"""Translation: pairs in rows, words that are forced or free, and networks that learn them."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import tiny_config, tiny_translator
from tests.stepping import take_step
from unmask.data.labelled.parallel import Pair
from unmask.infer.answering import answer_records
from unmask.model.config import SearchSettings
from unmask.model.decoding.unpacking import texts_of
from unmask.model.kernels import training as fast
from unmask.model.shape import DecoderConfig, Shape
from unmask.objectives.next_token import (
    ANSWERS,
    FORCED,
    PLACES,
    TARGET,
    NextToken,
    PairTokens,
    decoder_states,
)
from unmask.system.errors import DataError, SettingsError
from unmask.system.settings import validate
from unmask.tasks import translate
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import LiveForward
from unmask.tasks.results import AnswerCounts
from unmask.tasks.translate import (
    EMPTY,
    AskTranslation,
    Translate,
    TranslateSettings,
    Translation,
    detokenized,
    perplexity,
)
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.optim.optimizers import make_optimizer
from unmask.train.optim.schedules import OptimizerSettings
from unmask.train.steps.base import MicroBatch, TrainingModule

NAME = "translate"
SOURCE = "ein eine mann frau hund katze sitzt steht auf der matte ##n . , -".split()
WORDS = "a the man woman dog cat sits stands on mat ##s . ' s - un ##want ##ed ##".split()
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
    return Tokenizers(source, 32, Tokenizer(Vocabulary([*SPECIALS, *WORDS])))


@pytest.fixture(scope="module")
def tokens(both):
    return tokens_of(both, [Pair(s, t, "here") for s, t in PAIRS])


@pytest.fixture
def rows(monkeypatch):
    """Let batches have these rows, or one row for each text."""

    def lay(plan=None):
        def rows_of(lengths):
            return plan or [[i] for i in range(len(lengths))]

        monkeypatch.setattr(translate, "cheapest_rows", rows_of)

    return lay


def tokens_of(both, pairs):
    """What is learned from pairs, each as it is."""
    found = Translate(TranslateSettings()).windows(pairs, both, learn=True)
    return [window for _, windows in found for window in windows]


def batch_of(both, some):
    return Translate(TranslateSettings()).batch(some, both)


def loss_of(task, network, batch):
    return task.objective(network, batch, {})[NAME]


def with_forcing(batch, settings, progress, seed):
    objective = NextToken(settings, term=NAME)
    return objective.prepare(replace(batch, seed=seed), 0, progress)


def forced_of(batch):
    return batch.also[TARGET].labels[FORCED]


def texts_heard(batch):
    return texts_of(batch.also[TARGET].owner, batch.also[TARGET].index)


def searching(network, both, settings, some):
    """A search for what a network says to texts, which has not begun."""
    task = Translate(TranslateSettings()).with_search(settings)
    return task.session(LiveForward(network), some, both)


def said_of(network, both, settings, some):
    """What a network says to each text, all searched together."""
    session = searching(network, both, settings, some)
    while not session.done:
        session.step()
    return session.values()


def translator(kind, both, **changes):
    own, encoder = KINDS[kind]
    sizes = {"vocab_size": len(both.source.vocabulary), **encoder, **changes}
    return tiny_translator({"vocab_size": len(both.target.vocabulary), **own}, **sizes)


def test_a_target_is_heard_from_its_beginning_and_answered_to_its_end(both, tokens):
    said = both.target.vocabulary
    heard = [said.tokens[i] for i in tokens[0].decoder_inputs]
    answers = [said.tokens[i] for i in tokens[0].answers]
    assert heard == ["[CLS]", "a", "man", "sits", "."]
    assert answers == ["a", "man", "sits", ".", "[SEP]"]
    read = [both.source.vocabulary.tokens[i] for i in tokens[0].source]
    assert read == ["[CLS]", "ein", "mann", "sitzt", ".", "[SEP]"]


def test_a_source_without_a_target_is_only_read(both):
    (own,) = tokens_of(both, [Pair("ein mann", None, "here")])
    assert not own.target
    assert not own.labelled
    assert own.ids == own.source
    batch = batch_of(both, [own])
    assert not batch.labels
    assert not batch.also
    assert not batch.counts


def test_the_longer_side_decides_the_room(tokens):
    assert [len(own.ids) for own in tokens] == [6, 9, 5, 9, 5]
    assert len(tokens[4].ids) == len(tokens[4].decoder_inputs)


def test_both_sides_of_a_pair_lie_in_the_same_row_with_the_same_owner(both, tokens, rows):
    rows([[1, 4], [3, 0], [2]])
    batch = batch_of(both, tokens)
    heard = batch.also[TARGET]
    sources, targets = texts_of(batch.owner, batch.index), texts_of(heard.owner, heard.index)
    for number, pair in enumerate([1, 4, 3, 0, 2]):
        source, target = tokens[pair].source, tokens[pair].decoder_inputs
        assert sources.apart(batch.tokens)[number, : len(source)].tolist() == source
        assert targets.apart(heard.tokens)[number, : len(target)].tolist() == target
    owners = [sorted(set(owner.tolist()) - {-1}) for owner in batch.owner]
    assert owners == [sorted(set(owner.tolist()) - {-1}) for owner in heard.owner]
    assert owners == [[0, 1], [0, 1], [0]]


def test_answers_are_in_the_order_of_their_places(both, tokens, rows):
    rows([[1, 4], [3, 0], [2]])
    batch = batch_of(both, tokens)
    heard = batch.also[TARGET]
    expected = [word for pair in (1, 4, 3, 0, 2) for word in tokens[pair].answers]
    assert heard.labels[ANSWERS].tolist() == expected
    assert batch.counts == {NAME: len(expected)}
    words = heard.tokens.flatten()[heard.labels[PLACES]].tolist()
    assert words == [word for pair in (1, 4, 3, 0, 2) for word in tokens[pair].decoder_inputs]


def test_what_training_keeps_is_laid_out_as_before(both, tokens):
    plain, compact = batch_of(both, tokens), batch_of(both, [own.compact() for own in tokens])
    for name, tensor in plain.tensors().items():
        assert torch.equal(tensor, compact.tensors()[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_batch_is_the_sum_of_its_pairs(kind, both, tokens, rows):
    network, task = translator(kind, both), Translate(TranslateSettings())
    rows([[0]])
    alone = [loss_of(task, network, batch_of(both, [own])) for own in tokens]
    for plan in ([[1, 4], [3, 0], [2]], [[0], [1], [2], [3], [4]], [[4, 3, 2, 1, 0]]):
        rows(plan)
        together = loss_of(task, network, batch_of(both, tokens))
        torch.testing.assert_close(together, torch.stack(alone).sum(), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_cross_entropy_smoothed_in_training_only(kind, both, tokens):
    network = translator(kind, both, dropout=0.0, attention_dropout=0.0)
    task, batch = Translate(TranslateSettings(label_smoothing=0.2)), batch_of(both, tokens)
    scores = network.token_scores(decoder_states(network, batch), "decoder")
    answers = batch.also[TARGET].labels[ANSWERS]
    for training, smoothing in ((False, 0.0), (True, 0.2)):
        network.train(training)
        loss = loss_of(task, network, batch)
        expected = F.cross_entropy(scores, answers, reduction="sum", label_smoothing=smoothing)
        torch.testing.assert_close(loss, expected, atol=1e-3, rtol=1e-5)


def test_the_loss_is_summed_over_all_words_whatever_the_batches(both, tokens, monkeypatch):
    network = translator("gru both", both)
    task = Translate(TranslateSettings()).with_search(SearchSettings(max_length=2))
    pairs = [Pair(source, target, "here") for source, target in PAIRS]

    def measured(some):
        tally, known = AnswerCounts(), Criterion(network, task.objective)
        list(answer_records(LiveForward(network), both, task, some, known=known, tally=tally))
        return tally

    whole = measured(pairs)
    monkeypatch.setattr(Translate, "batch_tokens", 10)
    parts = measured(pairs)
    assert len(parts.losses) > len(whole.losses) == 1
    assert sum(parts.losses) == pytest.approx(sum(whole.losses), rel=1e-5)
    total = float(loss_of(task, network, batch_of(both, tokens)).detach())
    assert sum(whole.losses) == pytest.approx(total, rel=1e-5)
    count = sum(len(own.answers) for own in tokens)
    assert sum(whole.counts) == sum(parts.counts) == count
    assert whole.mean == pytest.approx(total / count, rel=1e-5)
    assert task.score_loss(whole.mean) == {"perplexity": perplexity(whole.mean)}
    assert measured([]).mean == 0.0
    assert perplexity(0.0) == 1.0
    assert perplexity(1e9) == perplexity(100.0)


def test_a_loss_is_measured_with_every_word_heard_as_it_should_be(both, tokens):
    network = translator("gru both", both)
    found = []
    for settings in (
        {},
        {"teacher_forcing": 0.3, "final_teacher_forcing": 0.0, "teacher_forcing_by": "sentence"},
    ):
        objective = NextToken(TranslateSettings(**settings), term=NAME)
        with torch.no_grad():
            found.append(Criterion(network, objective.standard())(batch_of(both, tokens)))
        assert objective.config.always == (not settings)
    assert found[0] == found[1]


def test_the_loss_of_a_text_without_a_translation_is_unknown_and_that_of_others_as_ever(both):
    network = translator("gru both", both)
    task = Translate(TranslateSettings()).with_search(SearchSettings(max_length=2))
    known, unknown = Pair(*PAIRS[0], "here"), Pair("der hund", None, "here")
    tallies, criterion = [], Criterion(network, task.objective)
    for some in ([known], [known, unknown]):
        tallies.append(AnswerCounts())
        list(
            answer_records(
                LiveForward(network), both, task, some, known=criterion, tally=tallies[-1]
            )
        )
    assert tallies[0].counts == tallies[1].counts == [5]
    assert tallies[0].mean == pytest.approx(tallies[1].mean, rel=1e-5)


RECURRENT = [kind for kind in KINDS if "transformer" not in kind.split()[:1]]


@pytest.mark.parametrize("kind", RECURRENT)
def test_forcing_every_word_step_by_step_is_forcing_all_at_once(kind, both, tokens):
    network = translator(kind, both)
    batch = batch_of(both, tokens)
    assert NextToken(TranslateSettings(), term=NAME).prepare(batch, 1, 0.5) is batch
    how = TranslateSettings(teacher_forcing=1.0, final_teacher_forcing=0.0)
    forced = with_forcing(batch, how, 0.0, seed=1)
    assert forced_of(forced).all()
    torch.testing.assert_close(
        decoder_states(network, forced), decoder_states(network, batch), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", RECURRENT)
def test_who_is_never_forced_hears_only_its_own_words(kind, both, tokens):
    network, how = translator(kind, both), TranslateSettings(teacher_forcing=0.0)
    batch = with_forcing(batch_of(both, tokens), how, 0.0, seed=1)
    assert not forced_of(batch).any()
    free = decoder_states(network, batch)
    heard = batch.also[TARGET]
    heard.tokens[heard.index != 0] = 7
    assert torch.equal(decoder_states(network, batch), free)


def test_one_draw_for_each_sentence_forces_all_of_it_or_nothing(both, tokens):
    how = TranslateSettings(teacher_forcing=0.5, teacher_forcing_by="sentence")
    seen = set()
    for seed in range(20):
        batch = with_forcing(batch_of(both, tokens), how, 0.0, seed)
        texts = texts_heard(batch)
        forced, real = texts.apart(forced_of(batch)), texts.real()
        for own, inside in zip(forced, real, strict=True):
            assert own[inside].all() or not own[inside].any()
        seen.add(tuple(forced[:, 0].tolist()))
    assert len(seen) > 10, "each sentence by itself"


def test_words_are_forced_by_themselves_as_often_as_wanted(both, tokens):
    batch, how = batch_of(both, tokens * 100), TranslateSettings(teacher_forcing=0.3)
    batch = with_forcing(batch, how, 0.0, seed=5)
    assert float(forced_of(batch).float().mean()) == pytest.approx(0.3, abs=0.02)
    apart = texts_heard(batch).apart(forced_of(batch))
    assert len({tuple(own.tolist()) for own in apart}) > 50


@pytest.mark.parametrize("by", ["step", "sentence"])
def test_the_seed_of_the_batch_alone_decides_who_is_forced(by, both, tokens):
    batch, how = (
        batch_of(both, tokens),
        TranslateSettings(teacher_forcing=0.5, teacher_forcing_by=by),
    )

    def drawn(seed):
        torch.rand(3)  # the generator that all share
        return forced_of(with_forcing(batch, how, 0.0, seed))

    assert torch.equal(drawn(1), drawn(1))
    assert any(not torch.equal(drawn(1), drawn(seed)) for seed in range(2, 6))


def test_what_is_forced_follows_the_progress_of_the_run(both, tokens):
    batch, how = (
        batch_of(both, tokens * 100),
        TranslateSettings(teacher_forcing=0.9, final_teacher_forcing=0.1),
    )
    shares = [float(forced_of(with_forcing(batch, how, p, 3)).float().mean()) for p in (0.0, 1.0)]
    assert shares == pytest.approx([0.9, 0.1], abs=0.02)


def test_forcing_moves_evenly_to_its_end():
    how = TranslateSettings(teacher_forcing=1.0, final_teacher_forcing=0.2)
    assert [how.forced(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1.0, 0.8, 0.6, 0.2])
    assert TranslateSettings(teacher_forcing=0.4).forced(0.9) == pytest.approx(0.4)
    assert TranslateSettings().always
    assert TranslateSettings(final_teacher_forcing=1.0).always
    assert not how.always


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"teacher_forcing_by": "sentence"},
            "teacher_forcing_by is set, but every token is teacher-forced",
        ),
        (
            {"teacher_forcing": 1.5},
            "'teacher_forcing' is 1.5; input should be less than or equal to 1",
        ),
        (
            {"final_teacher_forcing": -0.1},
            "'final_teacher_forcing' is -0.1; input should be greater",
        ),
        ({"label_smoothing": 1.0}, "'label_smoothing' is 1.0; input should be less than 1"),
        (
            {"teacher_forcing_by": "word"},
            "'teacher_forcing_by' is 'word'; input should be 'step' or 'sentence'",
        ),
        ({"search": {"beam": 2}}, r"\[search\]: unknown key 'beam'; did you mean 'beam_size'"),
        ({"search": {"seed": 2}}, "seed is set, but it only applies to sampling"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_should_be(settings, message):
    with pytest.raises(SettingsError, match=message):
        validate(TranslateSettings, settings, where="recipe [task]")


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
    assert detokenized([both.target.vocabulary.ids[word] for word in said.split()], both) == text


def test_no_special_token_but_the_end_is_ever_said(both, tokens):
    network, ids = translator("gru both", both), both.target.vocabulary.ids
    search = searching(network, both, SearchSettings(), tokens).search
    assert search.tokens.tolist() == [ids["[CLS]"]] * len(tokens)
    assert search.special.end == ids["[SEP]"]
    assert set(search.special.never) == {ids[s] for s in SPECIALS} - {search.special.end}
    with torch.no_grad():
        network.heads["decoder"].bias[list(search.special.never)] = 1e4
    for own in said_of(network, both, SearchSettings(longest=4), tokens):
        assert own.words
        assert not set(own.words) & {ids[s] for s in SPECIALS}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_answered_in_their_order_whatever_their_rows(kind, both, tokens, rows):
    network = translator(kind, both, init_std=0.5)
    numbered = [replace(own, number=n) for n, own in enumerate(tokens)]
    for how in (SearchSettings(max_length=6), SearchSettings(max_length=6, sample=True)):
        rows()
        alone = [said_of(network, both, how, [own])[0] for own in numbered]
        for plan in ([[4, 3], [1], [0, 2]], [[3, 0, 4, 1, 2]]):
            rows(plan)
            together = said_of(network, both, how, numbered)
            assert [one.words for one in together] == [one.words for one in alone]


def test_a_text_as_long_as_the_decoder_holds_can_be_said_to_its_end(both):
    """As many steps as there are positions: the words, and the end."""
    own = {"max_length": 4, "vocab_size": len(both.target.vocabulary)}
    network = tiny_translator(own, vocab_size=len(both.source.vocabulary))
    with torch.no_grad():
        network.heads["decoder"].bias[7] = 1e4
    (found,) = said_of(network, both, SearchSettings(), [PairTokens([2, 3])])
    assert found.words == [7, 7, 7, 7]


def test_a_pair_that_is_too_long_to_learn_from_has_no_window(both):
    pairs = [Pair("katze " * 20, "cat", "a:1"), Pair("katze", "cat " * 20, "a:2")]
    pairs.append(Pair("katze " * 8, "cat " * 9, "a:3"))
    small = replace(both, max_length=10)
    found = list(Translate(TranslateSettings()).windows(pairs, small, learn=True))
    assert [pair for pair, _ in found] == pairs
    assert [len(windows) for _, windows in found] == [0, 0, 1]
    asked = list(Translate(TranslateSettings()).windows(pairs, small))
    assert all(windows for _, windows in asked), "it is translated all the same"


def test_a_text_that_is_too_long_is_answered_in_parts_and_its_loss_unknown(both):
    small, task = replace(both, max_length=8), Translate(TranslateSettings())
    long = Pair("der hund sitzt . die katze sitzt . der mann", "the dog", "a:1")
    ((_, parts),) = task.windows([long], small)
    assert len(parts) > 1
    assert all(len(part.source) <= 8 for part in parts)
    assert not any(part.labelled for part in parts)
    assert task.split_texts == 1
    refusing = Translate(TranslateSettings(), split=False)
    with pytest.raises(
        DataError, match=r"text 2: 12 tokens; the model's maximum is 8.*remove --no-split"
    ):
        list(refusing.windows([Pair("hund", None, "a:1"), long], small))


def test_a_translation_that_is_too_long_for_the_decoder_has_no_loss(both):
    small = replace(both, max_length=6)
    pairs = [Pair("katze", "cat " * n, "here") for n in (4, 5, 6)]
    found = Translate(TranslateSettings()).windows(pairs, small)
    assert [window.labelled for _, (window,) in found] == [True, True, False]


def test_windows_are_numbered_through_all_texts(both):
    small, numbers = replace(both, max_length=5), itertools.count(4, 3)
    texts = ["hund", " ", "der hund sitzt . die katze", "katze"]
    pairs = [Pair(text, None, "here") for text in texts]
    found = list(Translate(TranslateSettings()).windows(pairs, small, numbers=numbers))
    assert [len(windows) for _, windows in found] == [1, 0, 2, 1]
    assert [w.number for _, windows in found for w in windows] == [4, 7, 10, 13]


def test_blank_texts_are_not_asked_and_stay_in_their_place(both):
    network, task = translator("gru both", both), Translate(TranslateSettings())
    pairs = [Pair(text, None, "here") for text in ("", "hund", " ", "", "katze", "")]
    found = list(answer_records(LiveForward(network), both, task, pairs))
    assert [pair for pair, _ in found] == pairs
    assert [answer == EMPTY for _, answer in found] == [True, False, True, True, False, True]


def test_the_score_of_parts_is_that_of_all_their_words_and_only_a_whole_has_words(both):
    class Said:
        def __init__(self, words, score):
            self.words, self.score = words, score

    task, ids = Translate(TranslateSettings()), both.target.vocabulary.ids
    record = Pair("hund", None, "here")
    dog, cat = Said([ids["dog"]], -1.0), Said([ids["cat"], ids["##s"]], -2.0)
    parts = [PairTokens([2, 3]), PairTokens([2, 3])]
    both_said = task.decode(record, parts, [dog, cat], both)
    assert both_said == Translation("dog cats", -3.0 / 5)
    one = task.decode(record, parts[:1], [cat], both)
    assert one == Translation("cats", -2.0 / 3, (ids["cat"], ids["##s"]))
    assert task.decode(record, [], [], both) == EMPTY


@pytest.mark.parametrize("how", [{}, {"beam_size": 3}, {"sample": True, "seed": 2}])
def test_an_answer_that_grows_ends_as_the_whole_one(how, both):
    network = translator("gru attention", both, init_std=0.5)
    task = Translate(TranslateSettings()).with_search(SearchSettings(max_length=5, **how))
    pairs = [Pair(source, None, "here") for source, _ in PAIRS] + [Pair("", None, "here")]
    whole = [answer for _, answer in answer_records(LiveForward(network), both, task, pairs)]
    growing, steps = task.stream(LiveForward(network), pairs, both), 0
    while not growing.done:
        growing.step()
        steps += 1
        assert len(growing.answers()) == len(pairs)
    assert 1 <= steps <= 5
    found = growing.answers()
    assert [own.words for own in found] == [own.words for own in whole]
    assert [own.score for own in found] == pytest.approx([own.score for own in whole], abs=1e-4)
    assert task.stream(LiveForward(network), pairs[-1:], both).done


def test_greedy_words_only_ever_grow(both):
    network = translator("gru attention", both, init_std=0.5)
    task = Translate(TranslateSettings()).with_search(SearchSettings(max_length=6))
    asked = [Pair(PAIRS[1][0], None, "here")]
    growing, seen = task.stream(LiveForward(network), asked, both), []
    while not growing.done:
        growing.step()
        seen += [own.words for own in growing.answers()]
    assert len(seen) > 1
    for before, after in itertools.pairwise(seen):
        assert after[: len(before)] == before


def test_a_question_brings_its_own_search(both):
    task = Translate(TranslateSettings(search=SearchSettings(beam_size=2)), split=False)
    asked = task.with_options(AskTranslation(text="hund", beams=5, penalty=0.5))
    assert asked.config.search == SearchSettings(beam_size=5, length_penalty=0.5)
    assert not asked.split
    assert task.config.search.beam_size == 2


def test_the_decoder_is_shaped_like_the_encoder_where_nothing_else_is_given(both):
    config, task = tiny_config(layers=3, max_length=20), Translate(TranslateSettings())
    (own,) = task.heads(config, both, {}).values()
    size = len(both.target.vocabulary)
    assert own == DecoderConfig(vocab_size=size, layers=3, max_length=20)
    shared = task.heads(config, Tokenizers(both.source, 32, both.source), {})["decoder"]
    assert shared.shared
    assert shared.vocab_size == len(both.source.vocabulary)
    given = {"cell": "gru", "layers": 1, "feeds": "word"}
    other = task.heads(config, both, given)["decoder"]
    assert (other.cell, other.layers, other.feeds) == ("gru", 1, "word")


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ({}, "all target tokens at once"),
        ({"cell": "gru", "feeds": "nothing"}, "no tokens"),
        ({"cell": "gru", "feeds": "context"}, "no tokens"),
    ],
)
def test_who_hears_none_of_its_own_words_is_forced_always_or_never(given, inputs, both):
    half = Translate(TranslateSettings(teacher_forcing=0.5))
    says = f"task.teacher_forcing is 0.5, but this decoder reads {inputs}"
    with pytest.raises(SettingsError, match=says):
        half.heads(tiny_config(), both, given)
    assert Translate(TranslateSettings()).heads(tiny_config(), both, given)
    assert half.heads(tiny_config(), both, {"cell": "gru", "feeds": "word"})


def test_a_network_with_a_decoder_is_a_translator(both):
    own = DecoderConfig(vocab_size=9, layers=1)
    shape = Shape.of(tiny_config(), {"decoder": own})
    assert Translate.restore(shape, TranslateSettings()) is not None
    assert Translate.restore(Shape.of(tiny_config()), TranslateSettings()) is None


def test_every_pair_to_learn_from_has_a_translation():
    task = Translate(TranslateSettings())
    task.check([Pair("hund", "dog", "a:1")])
    with pytest.raises(DataError, match="a:2: no translation; training"):
        task.check([Pair("hund", "dog", "a:1"), Pair("katze", None, "a:2")])


def test_translations_are_scored_as_sacrebleu_does():
    pytest.importorskip("sacrebleu")
    task = Translate(TranslateSettings())
    truth = ["A man sits on the mat today.", "The dog stands on the big mat."]
    pairs = [Pair("eins", truth[0], "a:1"), Pair("zwei", truth[1], "a:2")]
    perfect = task.score(pairs, [Translation(text.lower(), 0.0) for text in truth])
    assert perfect == pytest.approx({"bleu": 100.0, "chrf": 100.0})
    said = [Translation(truth[0].upper(), 0.0), Translation("nothing of it", 0.0)]
    detail = task.detail(pairs, said)
    assert [mistake.where for mistake in detail.mistakes] == ["a:2", "a:1"]
    assert detail.mistakes[1].severity == pytest.approx(0.0)


@pytest.mark.parametrize("fused", [True, False])
def test_the_loss_of_words_is_the_same_without_the_fast_way(fused, both, tokens, monkeypatch):
    network = translator("transformer", both).train()
    states = torch.randn(7, 16, requires_grad=True)
    answers = torch.tensor([5, 6, 7, 8, 9, 10, 11])
    if not fused:
        monkeypatch.setattr(fast, "usable", lambda x: False)
    loss = network.token_loss(states, answers, "decoder", 0.1)
    expected = F.cross_entropy(
        network.token_scores(states, "decoder"), answers, reduction="sum", label_smoothing=0.1
    )
    inputs = [states, network.heads["decoder"].tokens.weight, network.heads["decoder"].bias]
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
    task = Translate(TranslateSettings(label_smoothing=0.0))
    learner = TrainingModule(network, task.objective).train()
    optimizer = make_optimizer(learner, OptimizerSettings(learning_rate=2e-2, weight_decay=0.0))
    batch = batch_of(both, tokens[:4])
    for step in itertools.count():
        assert step < 300, "it does not learn"
        piece = MicroBatch(batch, step)
        result = take_step(learner, [piece], optimizer, clip=1.0)
        if result.loss < 0.05:
            break
    network.eval()
    for how in (SearchSettings(), SearchSettings(beam_size=3)):
        said = [detokenized(one.words, both) for one in said_of(network, both, how, tokens[:4])]
        assert said == [detokenized(own.answers[:-1], both) for own in tokens[:4]]
