"""What is searched is found: by greed, by beams as by trying all, by drawing as by chance."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from tests.conftest import tiny_translator
from unmask.data.batch import collate
from unmask.model.config import SearchSettings
from unmask.model.decoding import beam_search as module
from unmask.model.decoding.beam_search import SpecialIds, begin, search
from unmask.model.decoding.unpacking import texts_of
from unmask.objectives.next_token import NetworkDecoder
from unmask.system.errors import SettingsError
from unmask.system.settings import validate
from unmask.text.tokenizer import Encoded

BEGIN, END = 0, 1
MARKS = SpecialIds(END, (BEGIN,))
HASHES = 9973


@dataclass(frozen=True)
class Heard:
    """What a fable knows: which of them it is, and all words so far."""

    number: torch.Tensor  # [N]
    words: torch.Tensor  # [N, t]

    def select(self, which, each=1):
        return Heard(self.number[which], self.words[which])


class Fable:
    """Says anything, but the same after the same words: scores by a table of all beginnings."""

    def __init__(self, words=5, seed=0, scale=1.5):
        generator = torch.Generator().manual_seed(seed)
        self.table = scale * torch.randn(HASHES, words, generator=generator)
        self.asked = []  # how many rows, at every step

    def begin(self, numbers):
        return Heard(torch.tensor(numbers), torch.zeros(len(numbers), 0, dtype=torch.long))

    def step(self, state, words):
        self.asked.append(len(words))
        heard = torch.cat([state.words, words[:, None]], dim=1)
        return self.scores(state.number, heard), Heard(state.number, heard)

    def scores(self, number, heard):
        place = number + 1
        for word in heard.unbind(1):
            place = (place * 31 + word + 7) % HASHES
        return self.table[place].clone()


LIMIT = 16  # words, where nothing else is asked


def begun(speaker, numbers, *, limits=None, longest=LIMIT, marks=MARKS, own=None, **settings):
    """The beginning of a search for texts, each told by a number."""
    limits = torch.tensor(limits or [longest] * len(numbers))
    words, how = torch.full_like(limits, BEGIN), SearchSettings(**settings)
    return begin(speaker, speaker.begin([*numbers]), words, limits, marks, how, own)


def run(speaker, numbers, **how):
    """What is found for each text."""
    search = begun(speaker, numbers, **how)
    while not search.done:
        search.step()
    return search.hypotheses()


def score_of(fable, number, words):
    """The log-probability of some words, one after the other."""
    heard, total = [BEGIN], 0.0
    for word in words:
        scores = fable.scores(torch.tensor([number]), torch.tensor([heard]))[0]
        scores[list(MARKS.never)] = float("-inf")
        total += float(scores.log_softmax(-1)[word])
        heard.append(word)
    return total


def everything(words, longest):
    """All possible results: ended, or cut off at the longest."""
    for length in range(longest):
        for said in itertools.product(range(2, words), repeat=length):
            yield [*said, END]
    yield from map(list, itertools.product(range(2, words), repeat=longest))


def best_of(fable, number, words, longest, penalty):
    found = {tuple(said): score_of(fable, number, said) for said in everything(words, longest)}
    said = max(found, key=lambda said: found[said] / len(said) ** penalty)
    return [word for word in said if word != END], found[said]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("words", "longest"), [(4, 5), (5, 3), (6, 3)])
def test_enough_beams_find_the_best_of_all(penalty, words, longest):
    fable, numbers = Fable(words), list(range(6))
    found = run(fable, numbers, beam_size=64, length_penalty=penalty, longest=longest)
    for number, own in zip(numbers, found, strict=True):
        said, score = best_of(fable, number, words, longest, penalty)
        assert own.words == said
        assert own.score == pytest.approx(score, abs=1e-4)


def test_a_text_that_is_cut_off_is_not_taken_for_longer_than_it_is():
    """Words after which two of three say the same and one ends: only by its length it may win."""

    class Even(Fable):
        def scores(self, number, heard):
            chances = torch.tensor([0.0, 0.51, 0.49])  # begin, end, go on
            return chances.log().expand(len(number), -1).clone()

    (own,) = run(Even(), [0], beam_size=4, length_penalty=1.0, longest=3)
    assert own.words == [], "log 0.51 is more than the mean of any other"
    assert own.score == pytest.approx(math.log(0.51))


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beams", [4, 8])
def test_several_beams_find_what_greed_passes_by_and_hardly_ever_less(beams, penalty):
    fable, numbers = Fable(6), list(range(40))
    worth = [
        [
            one.score / (len(one.words) + (len(one.words) < 30)) ** penalty
            for one in run(fable, numbers, **how, longest=30)
        ]
        for how in ({}, {"beam_size": beams, "length_penalty": penalty})
    ]
    better = sum(b > a + 1e-5 for a, b in zip(*worth, strict=True))
    worse = sum(b < a - 1e-5 for a, b in zip(*worth, strict=True))
    assert better > 10
    assert worse <= 1


def test_a_higher_penalty_prefers_longer_texts():
    fable, numbers = Fable(5), list(range(30))
    lengths = [
        sum(
            len(one.words)
            for one in run(fable, numbers, beam_size=16, length_penalty=p, longest=12)
        )
        for p in (0.0, 0.7, 1.0, 1.5)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def greedy_by_hand(fable, number, limit):
    heard = [BEGIN]
    while len(heard) <= limit:
        scores = fable.scores(torch.tensor([number]), torch.tensor([heard]))[0]
        scores[BEGIN] = float("-inf")
        word = int(scores.argmax())
        if word == END:
            break
        heard.append(word)
    return heard[1:]


def test_greed_takes_the_likeliest_word_until_the_end_or_the_limit():
    fable, numbers = Fable(8), list(range(50))
    found = run(fable, numbers)
    said = [one.words for one in found]
    assert said == [greedy_by_hand(fable, number, LIMIT) for number in numbers]
    assert {len(words) for words in said} >= {0, 3, 16}, "some end at once, some never"
    for number, one in zip(numbers, found, strict=True):
        whole = [*one.words, END] if len(one.words) < LIMIT else one.words
        assert one.score == pytest.approx(score_of(fable, number, whole), abs=1e-4)


@pytest.mark.parametrize(
    "limits", [[12, 14, 20], [12, 13, 13], [4, 4, 4], [1, 1, 1], [1, 9, 2], [0, 3, 1], [0, 0, 0]]
)
@pytest.mark.parametrize("how", [{}, {"beam_size": 3}, {"sample": True}])
def test_limits_are_kept(limits, how):
    never_ends = Fable(4)
    never_ends.table[:, END] = -1e9
    found = run(never_ends, [0, 1, 2], limits=limits, **how)
    assert [len(one.words) for one in found] == limits


HOW = [
    {},
    {"beam_size": 3},
    {"beam_size": 5, "length_penalty": 0.5},
    {"sample": True, "seed": 3},
    {"sample": True, "top_k": 3, "top_p": 0.9, "temperature": 1.3},
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_neither_batch_mates_nor_their_order_change_what_is_said(how):
    fable, numbers, limits = Fable(7), list(range(12)), [12 + 2 * (n % 5) for n in range(12)]
    together = run(fable, numbers, limits=limits, own=numbers, **how)
    for order in (list(range(11, -1, -1)), [4, 7], [9]):
        some = run(fable, order, limits=[limits[i] for i in order], own=order, **how)
        assert [one.words for one in some] == [together[i].words for i in order]
        for one, i in zip(some, order, strict=True):
            assert one.score == pytest.approx(together[i].score, abs=1e-5)


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_texts_leave_when_they_are_done_and_no_other_notices(monkeypatch, how, share):
    fable, numbers = Fable(7), list(range(20))
    expected = run(Fable(7), numbers, **how)
    monkeypatch.setattr(module, "COMPACT_BELOW", share)
    assert run(fable, numbers, **how) == expected
    shrinks = fable.asked[-1] < fable.asked[0]
    assert shrinks == (share > 0.0 or "beam_size" in how)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_step_by_step_ends_with_what_a_search_finds(how):
    fable, numbers, limits = Fable(7), list(range(12)), [2 + n % 5 for n in range(12)]
    words = torch.full((12,), BEGIN)
    at_once = search(
        fable, fable.begin(numbers), words, torch.tensor(limits), MARKS, SearchSettings(**how)
    )
    steps, growing = 0, begun(fable, numbers, limits=limits, **how)
    while not growing.done:
        growing.step()
        steps += 1
        found = growing.hypotheses()
        assert len(found) == 12
        assert all(len(one.words) <= min(steps, n) for one, n in zip(found, limits, strict=True))
    assert steps <= max(limits)
    assert found == at_once


@pytest.mark.parametrize("how", [{}, {"sample": True, "seed": 3}], ids=str)
def test_who_keeps_one_text_each_never_takes_a_word_back(how):
    search, before = begun(Fable(7), range(12), **how), [[]] * 12
    while not search.done:
        search.step()
        now = [one.words for one in search.hypotheses()]
        assert all(after[: len(said)] == said for said, after in zip(before, now, strict=True))
        before = now
    assert any(before)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_what_is_never_to_be_said_is_not(how):
    fable = Fable(8)
    fable.table[:, [3, 5]] += 5.0
    marks = SpecialIds(END, (BEGIN, 3, 5))
    said = {word for one in run(fable, range(30), marks=marks, **how) for word in one.words}
    assert said == {2, 4, 6, 7}


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-3}])
def test_draws_from_one_word_are_greedy(narrow):
    fable, numbers = Fable(8), list(range(30))
    drawn = run(fable, numbers, sample=True, **narrow)
    assert [one.words for one in drawn] == [one.words for one in run(fable, numbers)]


def frequencies(scores, draws=20_000, **how):
    """How often each word comes first."""
    fable = Fable(len(scores))
    fable.table[:] = torch.tensor(scores)
    found = run(fable, [0] * draws, longest=1, sample=True, own=range(draws), **how)
    first = torch.tensor([one.words[0] if one.words else END for one in found])
    return (torch.bincount(first, minlength=len(scores)) / draws).tolist()


SCORES = [9.0, 0.5, 1.0, -1.0, 2.0]  # the first is never said
SHARES = torch.tensor([float("-inf"), *SCORES[1:]])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_words_are_drawn_as_often_as_they_are_likely(temperature):
    expected = (SHARES / temperature).softmax(-1).tolist()
    assert frequencies(SCORES, temperature=temperature) == pytest.approx(expected, abs=0.012)


def test_draws_are_among_the_few_likeliest_by_number_or_by_share():
    one, two, three, four = SHARES[1:].softmax(-1).tolist()
    of_two = [0, 0, two / (two + four), 0, four / (two + four)]
    assert frequencies(SCORES, top_k=2) == pytest.approx(of_two, abs=0.012)
    assert four < 0.7 < four + two, "the second is needed to have seven tenths"
    assert frequencies(SCORES, top_p=0.7) == pytest.approx(of_two, abs=0.012)


def test_the_seed_decides_what_is_drawn():
    def drawn(seed):
        return [one.words for one in run(Fable(8), range(20), sample=True, seed=seed)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1) != drawn(2**32 + 1)


def test_texts_that_are_alike_are_drawn_apart():
    found = run(Fable(8), [0] * 20, sample=True)
    assert len({tuple(one.words) for one in found}) > 10


TRANSLATORS = {
    "transformer": ({}, {}),
    "lstm": ({"cell": "lstm", "feeds": "word"}, {"cell": "lstm"}),
    "attention": ({"cell": "gru", "feeds": "both", "attention": "additive"}, {"cell": "gru"}),
}


def lively(kind):
    """A network with large weights, which says different things to different texts."""
    own, changes = TRANSLATORS[kind]
    network = tiny_translator(own, **changes, init_std=0.5)
    with torch.no_grad():
        for weight in network.heads["decoder"].parameters():
            weight.mul_(3.0 if weight.ndim > 1 else 1.0)
    return network


def sources(network, lengths=(4, 7, 2, 5, 3)):
    generator = torch.Generator().manual_seed(3)
    some = [torch.randint(5, 23, (n,), generator=generator).tolist() for n in lengths]
    some = [Encoded(ids, [0] * len(ids), [], []) for ids in some]
    batch = collate(some, [[i] for i in range(len(some))], pad_id=0)
    states = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    texts = texts_of(batch.owner, batch.index)
    return 3 * states, texts


def recomputed(network, states, texts, limit):
    """Greedy words of every text, all steps computed anew for each."""
    said = []
    for n, length in enumerate(texts.length.tolist()):
        own, index = states[n : n + 1, :length], torch.arange(length)[None]
        heard = [0]
        while len(heard) <= limit:
            words = torch.tensor([heard])
            where, nobody = torch.arange(len(heard))[None], torch.zeros_like(words)
            if network.shape.decoder.cell == "attention":
                same = torch.zeros_like(index)
                found = network.heads["decoder"](words, where, nobody, own, same, network.words())
            else:
                spoken = network.heads["decoder"].begin(
                    own, texts_of(torch.zeros_like(index), index)
                )
                found = network.heads["decoder"](spoken, words, network.words())
            word = int(network.token_scores(found[0, -1], "decoder")[1:].argmax()) + 1
            if word == 1:
                break
            heard.append(word)
        said.append(heard[1:])
    return said


def spoken(network, states, texts, settings, *, longest):
    """What a network says of these states."""
    state = network.heads["decoder"].begin(states, texts)
    limits = torch.full_like(texts.length, longest)
    words = torch.full_like(limits, BEGIN)
    return search(NetworkDecoder(network), state, words, limits, MARKS, settings)


@pytest.mark.parametrize("kind", TRANSLATORS)
@torch.inference_mode()
def test_kept_states_say_what_computing_everything_anew_says(kind):
    network = lively(kind)
    states, texts = sources(network)
    found = spoken(network, states, texts, SearchSettings(), longest=12)
    said = [one.words for one in found]
    assert said == recomputed(network, states, texts, 12)
    assert len(set(map(tuple, said))) > 2


@pytest.mark.parametrize("kind", TRANSLATORS)
@torch.inference_mode()
def test_the_beams_of_a_text_are_the_same_whoever_is_searched_beside_it(kind):
    network = lively(kind)
    states, texts = sources(network)
    how = SearchSettings(beam_size=4)
    together = spoken(network, states, texts, how, longest=10)
    for n, length in enumerate(texts.length.tolist()):
        single = texts_of(torch.zeros(1, length).long(), torch.arange(length)[None])
        (alone,) = spoken(network, states[n : n + 1, :length], single, how, longest=10)
        assert alone.words == together[n].words
        assert alone.score == pytest.approx(together[n].score, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"temperature": 0.5},
            "temperature is set, but it only applies to sampling; set sample = true",
        ),
        ({"top_k": 5}, "top_k is set, but it only applies to sampling"),
        ({"top_p": 0.5}, "top_p is set, but it only applies to sampling"),
        ({"seed": 5}, "seed is set, but it only applies to sampling"),
        ({"sample": True, "beam_size": 2}, "sampling and beam search exclude each other"),
        ({"beam_size": 0}, "'beam_size' is 0; input should be greater than or equal to 1"),
        ({"beam_size": 65}, "'beam_size' is 65; input should be less than or equal to 64"),
        (
            {"length_penalty": -1.0},
            "'length_penalty' is -1.0; input should be greater than or equal to 0",
        ),
        ({"max_length": 0}, "'max_length' is 0; input should be greater than or equal to 1"),
        ({"sample": True, "temperature": 0.0}, "'temperature' is 0.0; input should be greater"),
        ({"sample": True, "top_p": 0.0}, "'top_p' is 0.0; input should be greater than 0"),
        ({"sample": True, "top_p": 1.5}, "'top_p' is 1.5; input should be less than or equal"),
        ({"sample": True, "top_k": -1}, "'top_k' is -1; input should be greater than"),
        ({"beam": 4}, "unknown key 'beam'; did you mean 'beam_size'"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_should_be(settings, message):
    with pytest.raises(SettingsError, match=message):
        validate(SearchSettings, settings, where="recipe [task]")
