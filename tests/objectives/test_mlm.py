"""Masked language modelling: how much is hidden, how, and what not finding it costs."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.conftest import tiny_network
from tests.corpora import corpus_of
from tests.objectives.conftest import CLS, MASK, PAD, SEP, UNKNOWN, around, batch_of, letters
from tests.shapes import bert_heads
from unmask.data.corpus.config import ExampleSettings
from unmask.data.corpus.stream import Cursor, Stream
from unmask.objectives.mlm import MaskedLM, MaskSettings
from unmask.system.settings import validate
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

SIZE = 100  # of the vocabulary
WIDE = 20_000  # a vocabulary in which a random token is hardly ever the right one by chance


def masked(size=SIZE, **settings) -> MaskedLM:
    return MaskedLM(MaskSettings(**settings), letters(size))


def random_texts(count, length, *, size=SIZE, seed=0):
    draw = np.random.default_rng(seed)
    return [around(draw.integers(5, size, length).tolist()) for _ in range(count)]


def asked(batch):
    """Which tokens of a prepared batch must be guessed.  -> [B, S]"""
    found = torch.zeros(batch.tokens.numel(), dtype=torch.bool)
    found[batch.labels["mlm_places"]] = True
    return found.view_as(batch.tokens)


def near(share, expected, count):
    """Within four deviations of what so many draws give."""
    return abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


@pytest.fixture(scope="module")
def plain():
    """A hundred and fifty thousand tokens in texts of odd lengths, before and after."""
    texts = [t for n in (3, 37, 101, 259) for t in random_texts(150_000 // 4 // n, n, seed=n)]
    batch = batch_of(texts)
    return batch, masked().prepare(batch, 1, 0.0)


def test_fifteen_in_a_hundred_ordinary_tokens_are_hidden(plain):
    before, after = plain
    ordinary = (before.tokens >= 5).sum().item()
    assert ordinary > 140_000
    assert asked(after).sum().item() / ordinary == pytest.approx(0.15, abs=0.002)
    assert after.counts["mlm"] == asked(after).sum()


@pytest.mark.parametrize(("length", "hidden"), [(20, {3}), (100, {15}), (10, {1, 2}), (1, {0, 1})])
def test_how_many_tokens_of_one_text_are_hidden_by_hand(length, hidden):
    batch = masked().prepare(batch_of(random_texts(2000, length)), 1, 0.0)
    counts = [
        int(asked(batch)[row, start : start + length + 2].sum())
        for row, start in zip(batch.row, batch.start, strict=True)
    ]
    assert set(counts) == hidden
    assert np.mean(counts) == pytest.approx(0.15 * length, abs=0.05)  # 10: one or two, half each


def test_of_the_hidden_eighty_are_masked_ten_random_and_ten_as_they_are(plain):
    before, after = plain
    was, shown = before.tokens[asked(after)], after.tokens[asked(after)]
    count = len(was)
    by_chance = 0.1 / SIZE  # a random token may be [MASK], or the very one
    assert near((shown == MASK).float().mean().item(), 0.8 + by_chance, count)
    assert near((shown == was).float().mean().item(), 0.1 + by_chance, count)
    other = ((shown != MASK) & (shown != was)).float().mean().item()
    assert near(other, 0.1 - 2 * by_chance, count)


def test_a_random_token_may_be_any_of_the_vocabulary_and_each_as_likely(plain):
    batch = plain[0]
    after = masked(mask_share=0.0, random_share=1.0).prepare(batch, 1, 0.0)
    shown = after.tokens[asked(after)]
    counts = torch.bincount(shown, minlength=SIZE)
    assert len(counts) == SIZE
    assert counts[0] > 0, "the first"
    assert counts[-1] > 0, "the last"
    expected = len(shown) / SIZE
    assert ((counts - expected).abs() < 5 * expected**0.5).all()


def test_every_place_of_a_text_is_as_likely_to_be_hidden():
    length, count = 40, 4000
    batch = masked().prepare(batch_of(random_texts(count, length), row_length=42), 1, 0.0)
    found = asked(batch)[:, 1 : length + 1].sum(0)
    assert found.sum() == 0.15 * length * count
    assert ((found - 0.15 * count).abs() < 5 * (0.15 * 0.85 * count) ** 0.5).all()


def test_what_is_not_hidden_is_unchanged_and_the_answers_are_what_was_there(plain):
    before, after = plain
    found = asked(after)
    assert torch.equal(after.tokens[~found], before.tokens[~found])
    assert torch.equal(after.labels["mlm_tokens"], before.tokens[found])
    assert torch.equal(
        after.labels["mlm_tokens"], before.tokens.flatten()[after.labels["mlm_places"]]
    )


def test_the_batch_that_was_given_stays_as_it_is():
    batch = batch_of(random_texts(50, 30))
    copy = batch.tokens.clone()
    masked().prepare(batch, 1, 0.0)
    assert torch.equal(batch.tokens, copy)


def test_special_tokens_are_never_hidden_even_where_a_text_has_them():
    draw = np.random.default_rng(0)
    texts = [around(draw.integers(0, 12, 50).tolist()) for _ in range(400)]
    before = batch_of(texts)
    assert all((before.tokens == special).sum() > 400 for special in (UNKNOWN, MASK, SEP, CLS))
    after = masked(mask_rate=0.9).prepare(before, 1, 0.0)
    assert (after.labels["mlm_tokens"] >= 5).all()
    special = before.tokens < 5
    assert torch.equal(after.tokens[special], before.tokens[special])
    assert not asked(after)[before.owner < 0].any(), "nor is padding"


def test_special_tokens_do_not_count_when_the_rate_is_reckoned():
    texts = [around([UNKNOWN] * 30 + [7] * 20)] * 50
    batch = masked().prepare(batch_of(texts), 1, 0.0)
    assert batch.counts["mlm"] == 3 * 50


def test_special_tokens_are_known_wherever_they_stand_in_the_vocabulary():
    vocabulary = Vocabulary(["a", "b", "[MASK]", "c", "[SEP]", "[CLS]", "d", "[PAD]", "[UNK]"])
    objective = MaskedLM(MaskSettings(mask_rate=0.9), vocabulary)
    before = batch_of([around([0, 1, 3, 6, 2, 4, 5, 7, 8])] * 50)
    after = objective.prepare(before, 1, 0.0)
    assert set(after.labels["mlm_tokens"].tolist()) <= {0, 1, 3, 6}
    assert (after.tokens == vocabulary.mask).sum() > 100


def test_a_text_without_ordinary_tokens_has_nothing_to_guess():
    batch = masked().prepare(batch_of([around([]), around([UNKNOWN])]), 1, 0.0)
    assert batch.counts == {"mlm": 0}
    assert batch.labels["mlm_places"].shape == (0,)


@pytest.mark.parametrize(
    ("shares", "shown"),
    [((1.0, 0.0), "mask"), ((0.0, 0.0), "itself"), ((0.0, 1.0), "random")],
)
def test_shares_of_one_and_nothing(shares, shown):
    before = batch_of(random_texts(50, 60, size=WIDE))
    after = masked(WIDE, mask_share=shares[0], random_share=shares[1]).prepare(before, 1, 0.0)
    seen, was = after.tokens[asked(after)], before.tokens[asked(after)]
    assert len(seen) == 9 * 50
    same = {"mask": seen == MASK, "itself": seen == was, "random": (seen != was) & (seen != MASK)}
    assert same[shown].float().mean() > 0.99


def test_what_is_hidden_is_a_function_of_the_example_and_the_key():
    batch = batch_of(random_texts(50, 60))
    one, again, other = (masked().prepare(batch, root, 0.0) for root in (1, 1, 2))
    assert torch.equal(one.tokens, again.tokens)
    assert torch.equal(one.labels["mlm_places"], again.labels["mlm_places"])
    assert not torch.equal(one.labels["mlm_places"], other.labels["mlm_places"])
    renumbered = masked().prepare(batch_of(random_texts(50, 60), seed=9), 1, 0.0)
    assert not torch.equal(one.labels["mlm_places"], renumbered.labels["mlm_places"])


def test_what_is_hidden_does_not_depend_on_what_the_tokens_are():
    one = masked().prepare(batch_of(random_texts(50, 60, seed=1)), 1, 0.0)
    other = masked().prepare(batch_of(random_texts(50, 60, seed=2)), 1, 0.0)
    assert torch.equal(one.labels["mlm_places"], other.labels["mlm_places"])


def worded(count, *, seed=0):
    """Texts of words of one to four tokens, and which tokens continue one."""
    draw = np.random.default_rng(seed)
    texts, flags = [], []
    for _ in range(count):
        sizes = draw.integers(1, 5, 25)
        inside = [i > 0 for size in sizes for i in range(size)]
        texts.append(around(draw.integers(5, WIDE, len(inside)).tolist()))
        flags.append([False, *inside, False])
    return batch_of(texts, continues=flags)


@pytest.fixture(scope="module")
def words():
    """A hundred and twenty thousand tokens in words: before, after, and each word's places."""
    before = worded(2000)
    after = masked(WIDE, whole_word_masking=True).prepare(before, 1, 0.0)
    tokens, glued = before.tokens.flatten().tolist(), before.continues.flatten().tolist()
    groups = []
    for at, (token, continues) in enumerate(zip(tokens, glued, strict=True)):
        if token >= 5 and continues:
            groups[-1].append(at)
        elif token >= 5:
            groups.append([at])
    return before, after, groups


def test_a_word_is_hidden_whole_or_not_at_all(words):
    _, after, groups = words
    found = asked(after).flatten().tolist()
    assert len(groups) == 2000 * 25
    assert all(len({found[at] for at in group}) == 1 for group in groups)
    assert any(found)


def test_a_hidden_word_is_treated_by_one_rule(words):
    before, after, groups = words
    found, was, seen = (t.flatten().tolist() for t in (asked(after), before.tokens, after.tokens))
    kinds, mixed = Counter(), 0
    for group in groups:
        if found[group[0]]:
            marks = {
                "masked" if seen[at] == MASK else "kept" if seen[at] == was[at] else "random"
                for at in group
            }
            mixed += len(marks) > 1
            kinds[marks.pop()] += 1
    assert mixed <= 2  # a random token may be the right one by chance, once in WIDE
    count = sum(kinds.values())
    assert near(kinds["masked"] / count, 0.8, count)
    assert near(kinds["random"] / count, 0.1, count)
    assert near(kinds["kept"] / count, 0.1, count)


def test_the_tokens_of_a_random_word_are_drawn_apart(words):
    before = words[0]
    after = masked(WIDE, whole_word_masking=True, mask_share=0.0, random_share=1.0).prepare(
        before, 1, 0.0
    )
    seen = after.tokens[asked(after)]
    assert len(seen.unique()) > 0.5 * len(seen)


def test_with_whole_words_the_rate_of_tokens_is_kept(words):
    before, after, _ = words
    ordinary = (before.tokens >= 5).sum().item()
    assert ordinary > 120_000
    assert asked(after).sum().item() / ordinary == pytest.approx(0.15, abs=0.002)


def test_a_long_word_is_as_likely_to_be_hidden_as_a_short_one(words):
    _, after, groups = words
    found = asked(after).flatten().tolist()
    for size in range(1, 5):
        chosen = [found[group[0]] for group in groups if len(group) == size]
        assert np.mean(chosen) == pytest.approx(0.15, abs=0.015)


def test_without_whole_words_words_are_torn(words):
    before, _, groups = words
    found = asked(masked(WIDE).prepare(before, 1, 0.0)).flatten().tolist()
    torn = [group for group in groups if len({found[at] for at in group}) == 2]
    assert len(torn) > 1000


def test_words_of_one_token_are_hidden_as_tokens_are():
    batch = batch_of(random_texts(50, 60))
    one, other = (masked(whole_word_masking=w).prepare(batch, 1, 0.0) for w in (True, False))
    assert torch.equal(one.tokens, other.tokens)


def test_a_word_does_not_reach_over_an_unknown_token():
    """a [UNK] ##b: what continues after something that cannot be hidden is a word of its own."""
    text, flags = around([7, UNKNOWN, 8]), [False, False, True, True, False]
    batch = batch_of([text] * 2000, continues=[flags] * 2000)
    found = asked(masked(mask_rate=0.5, whole_word_masking=True).prepare(batch, 1, 0.0))
    alone = sum(
        bool(found[row, start + 1]) != bool(found[row, start + 3])
        for row, start in zip(batch.row, batch.start, strict=True)
    )
    assert alone == 2000  # one of the two tokens, in every text


def test_words_of_chinese_that_were_given_by_spaces_are_hidden_whole(tmp_path):
    signs = "的一是在不了有和人这中大为上个国我以要他"
    draw = np.random.default_rng(0)
    documents = [
        [
            " ".join("".join(draw.choice([*signs], size)) for size in draw.integers(1, 4, 12))
            for _ in range(4)
        ]
        for _ in range(60)
    ]
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, *signs]))
    corpus = corpus_of(tmp_path, documents, tokenizer, words="spaces")
    stream = Stream(corpus, np.arange(60), ExampleSettings(pairs="off", short_share=0.0), 0, 128)
    batch = stream.batch([Cursor(0, row) for row in range(len(stream.epoch(0)))])
    how = MaskSettings(whole_word_masking=True)
    found = asked(MaskedLM(how, tokenizer.vocabulary).prepare(batch, 1, 0.0)).flatten()
    said = {word for sentences in documents for s in sentences for word in s.split()}
    ids, glued = batch.tokens.flatten().tolist(), batch.continues.flatten().tolist()
    hidden, torn, word = [], 0, []
    for at, (token, continues) in enumerate([*zip(ids, glued, strict=True), (SEP, False)]):
        if not continues:
            if len(word) > 1 and found[word].any():
                torn += not found[word].all()
                hidden.append("".join(tokenizer.vocabulary.tokens[ids[i]] for i in word))
            word = []
        if token >= 5:
            word.append(at)
    assert torn == 0
    assert len(hidden) > 50
    assert set(hidden) <= said


def hidden_by_epoch(folder, copies):
    documents = [[" ".join(f"w{9 * d + i}" for i in range(9))] for d in range(40)]
    corpus = corpus_of(folder, documents)
    how = ExampleSettings(pairs="off", short_share=0.0, copies=copies)
    stream = Stream(corpus, np.arange(40), how, 0, 16)
    objective = MaskedLM(MaskSettings(), corpus.tokenizer.vocabulary)
    epochs = []
    for epoch in range(4):
        rows = [Cursor(epoch, row) for row in range(len(stream.epoch(epoch)))]
        batch = objective.prepare(stream.batch(rows), 1, 0.0)
        epochs.append(sorted(batch.labels["mlm_tokens"].tolist()))
    return epochs


def test_the_same_text_is_hidden_otherwise_in_every_epoch(tmp_path):
    epochs = hidden_by_epoch(tmp_path, 0)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_with_copies_the_same_tokens_are_hidden_every_so_many_epochs(tmp_path):
    one, two, again, and_again = hidden_by_epoch(tmp_path, 2)
    assert one == again
    assert two == and_again
    assert one != two


@pytest.fixture(scope="module")
def scored():
    """A small network and a batch with two texts in a row."""
    network = tiny_network(bert_heads(tokens=True), vocab_size=SIZE, max_length=64)
    texts = [*random_texts(3, 25), *random_texts(2, 12)]
    return network, masked(mask_rate=0.3).prepare(batch_of(texts, row_length=45), 1, 0.0)


def states(network, batch):
    return network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)


def read(network, hidden, batch):
    """What the objective says of the states in its places."""
    objective = masked()
    return objective.read(network, hidden.flatten(0, 1)[objective.places(batch)], batch)


def test_the_loss_is_the_sum_over_hidden_tokens_spelled_out(scored):
    network, batch = scored
    hidden = states(network, batch)
    logs = network.token_scores(hidden).log_softmax(-1)  # [B, S, V]: of all places
    answers = torch.full_like(batch.tokens, -1).flatten()
    answers[batch.labels["mlm_places"]] = batch.labels["mlm_tokens"]
    answers = answers.view_as(batch.tokens)
    expected = 0.0
    for row in range(len(answers)):
        for place in range(answers.shape[1]):
            if answers[row, place] >= 0:
                expected -= logs[row, place, answers[row, place]].item()
    sums = read(network, hidden, batch)
    assert sums["mlm"].item() == pytest.approx(expected, rel=1e-5)
    assert sums["mlm"].shape == ()


def test_the_loss_of_a_network_that_knows_nothing_is_ln_v_a_token(scored):
    _, batch = scored
    blank = tiny_network(bert_heads(tokens=True), vocab_size=SIZE, max_length=64)
    for parameter in blank.parameters():
        parameter.data.zero_()
    sums = read(blank, states(blank, batch), batch)
    assert sums["mlm"].item() / batch.counts["mlm"] == pytest.approx(np.log(SIZE), rel=1e-6)


def test_right_answers_are_counted_in_evaluation_only(scored):
    network, batch = scored
    hidden = states(network, batch)
    best = network.token_scores(hidden).argmax(-1).flatten()[batch.labels["mlm_places"]]
    expected = int((best == batch.labels["mlm_tokens"]).sum())
    sums = read(network, hidden, batch)
    assert int(sums["mlm_right"]) == expected
    told = batch.with_labels(batch.counts["mlm"], "mlm", mlm_tokens=best)
    assert int(read(network, hidden, told)["mlm_right"]) == batch.counts["mlm"]
    try:
        assert set(read(network.train(), hidden, batch)) == {"mlm"}
    finally:
        network.eval()


def test_a_batch_without_hidden_tokens_costs_nothing(scored):
    network, _ = scored
    batch = masked().prepare(batch_of([around([UNKNOWN] * 4)]), 1, 0.0)
    assert read(network, states(network, batch), batch)["mlm"].item() == 0.0


def test_encoder_and_token_head_get_gradient_and_the_pooler_none(scored):
    network, batch = scored
    network.zero_grad()
    read(network, states(network, batch), batch)["mlm"].backward()
    without = {n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()}
    assert all(name.startswith("heads.pooler.") for name in without)
    assert network.heads["tokens"].bias.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"mask_share": 0.8, "random_share": 0.3}, "mask_share and random_share add up to more"),
        ({"mask_rate": 0.0}, "'mask_rate' is 0.0; "),
        ({"mask_rate": 1.0}, "'mask_rate' is 1.0; "),
        ({"whole_word": True}, "unknown key 'whole_word'; did you mean 'whole_word_masking'?"),
    ],
)
def test_a_wrong_setting_is_named(table, says):
    with pytest.raises(ValueError) as error:
        validate(MaskSettings, table, where="recipe [objective]")
    assert str(error.value).startswith("recipe [objective]: " + says)


def test_the_paper_is_the_default():
    how = MaskSettings()
    assert (how.mask_rate, how.mask_share, how.random_share) == (0.15, 0.8, 0.1)
    assert not how.whole_word_masking


def test_padding_is_nobodys_text():
    texts = batch_of([around([7] * 3), around([8] * 9)], row_length=11)
    batch = masked(mask_rate=0.9).prepare(texts, 1, 0.0)
    assert (batch.tokens[batch.owner < 0] == PAD).all()


def test_the_rate_may_change_over_the_run():
    how = masked(mask_rate=0.4, final_mask_rate=0.2)
    assert [how.mask_rate(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([0.4, 0.3, 0.2])
    batch = batch_of(random_texts(40, 100))
    shares = [how.prepare(batch, 1, p).counts["mlm"] / (40 * 100) for p in (0.0, 1.0)]
    assert shares == pytest.approx([0.4, 0.2], abs=0.01)
    assert how.config.mask_rate == 0.4  # the objective itself stays as it is
    assert masked(mask_rate=0.4).mask_rate(0.7) == 0.4
    begun, ended = (masked(mask_rate=0.4).prepare(batch, 1, p) for p in (0.0, 0.7))
    assert torch.equal(begun.tokens, ended.tokens)
