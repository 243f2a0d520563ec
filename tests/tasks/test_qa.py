"""Answers in passages: windows, the best stretch, no answer; SQuAD's scores by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from unmask.data.labelled.squad import Question, Span
from unmask.infer.answering import answer_records
from unmask.system.errors import DataError
from unmask.tasks.forward import LiveForward, scores_of
from unmask.tasks.metrics import normalized, word_f1
from unmask.tasks.qa import Candidate, Qa, QaAnswer, QaSettings, best_match
from unmask.text.tokens import Tokenizers

CONTEXT = "it began in october 1973 . the cat sat on the mat in paris ."


def question(*found, text="when", context=CONTEXT, number=1):
    spans = tuple(Span(one, context.index(one)) for one in found)
    return Question(str(number), text, context, spans, f"here:{number}")


@pytest.fixture
def task():
    return Qa(QaSettings(stride=4))


def windows_of(task, some, tokenizer, limit=64):
    return [found for _, found in task.windows(some, Tokenizers(tokenizer, limit))]


def test_the_truth_is_the_first_and_the_last_token_of_the_answer(task, words):
    ((window,),) = windows_of(task, [question("october 1973")], words)
    tokens = [words.vocabulary.tokens[i] for i in window.ids]
    first, last = window.truth
    assert tokens[first : last + 1] == ["october", "1973"]
    assert window.segments[first] == 1


def test_a_window_that_does_not_hold_the_answer_points_at_cls(task, words):
    (windows,) = windows_of(task, [question("october 1973")], words, limit=14)
    assert len(windows) > 1
    holding = [w for w in windows if w.truth != (0, 0)]
    for window in holding:
        first, last = window.truth
        tokens = [words.vocabulary.tokens[i] for i in window.ids]
        assert tokens[first : last + 1] == ["october", "1973"]
    assert any(w.truth == (0, 0) for w in windows)


def test_no_answer_is_cls_in_every_window(task, words):
    (windows,) = windows_of(task, [question()], words, limit=14)
    assert {w.truth for w in windows} == {(0, 0)}


def test_windows_of_a_long_passage_share_tokens_and_lose_none(task, words):
    long = " ".join(f"{w} ." for w in ("cat", "dog", "mat", "paris") * 12)
    (windows,) = windows_of(task, [question(context=long)], words, limit=20)
    seen = set()
    for window in windows:
        assert len(window.ids) <= 20
        seen |= {tuple(stretch) for stretch in window.metadata}
    assert len(seen) == 96


def test_a_long_question_leaves_room_for_the_passage(task, words):
    (windows,) = windows_of(task, [question(text="when " * 100)], words, limit=20)
    assert all(len(w.ids) <= 20 for w in windows)
    assert all(len(w.metadata) >= 1 for w in windows)


def test_the_loss_is_over_the_tokens_of_each_window(task, network_for, words):
    network, tokens = network_for(task), Tokenizers(words, 64)
    some = [question("october 1973"), question("paris", context="paris .", number=2)]
    windows = [w for found in windows_of(task, some, words) for w in found]
    batch = task.batch(windows, tokens)
    expected = 0.0
    for window in windows:
        alone = scores_of(network, task.batch([window], tokens))  # [S, 2]
        for side in (0, 1):
            truth = torch.tensor([window.truth[side]])
            expected = expected + F.cross_entropy(alone[None, :, side], truth) / 2
    torch.testing.assert_close(task.loss(scores_of(network, batch), batch), expected)
    assert batch.counts == {"qa": len(windows)}


def scored(window, first, last, value=5.0):
    """Scores that point at two tokens of the passage, and at nothing else."""
    table = np.full((len(window.ids), 2), -5.0, np.float32)
    table[window.segments.index(1) + first, 0] = value
    table[window.segments.index(1) + last, 1] = value
    return table


def test_an_answer_is_a_stretch_of_the_passage_letter_by_letter(task, words):
    record = question("October\t1973", context="It  began in October\t1973.")
    ((window,),) = windows_of(task, [record], words)
    found = task.decode(record, [window], [scored(window, 3, 4)], Tokenizers(words, 64))
    assert found.text == "October\t1973"
    assert record.context[found.start : found.end] == found.text
    assert found.candidates[0].probability == found.probability > 0.9


def test_an_answer_does_not_end_before_it_begins_nor_in_the_question(task, words):
    record = question("october 1973")
    ((window,),) = windows_of(task, [record], words)
    table = scored(window, 5, 2)
    table[1] = 9.0  # the question
    found = task.decode(record, [window], [table], Tokenizers(words, 64))
    assert all(c.start < c.end for c in found.candidates)
    assert "when" not in found.text


def test_an_answer_is_no_longer_than_allowed(words):
    task = Qa(QaSettings(max_answer_length=2))
    record = question("october 1973")
    ((window,),) = windows_of(task, [record], words)
    found = task.decode(record, [window], [scored(window, 0, 5)], Tokenizers(words, 64))
    assert max(len(c.text.split()) for c in found.candidates) == 2


def test_the_best_stretch_over_all_windows_wins(task, words):
    record = question("paris")
    (windows,) = windows_of(task, [record], words, limit=16)
    tables = [scored(w, 0, 0, value=1.0 + i) for i, w in enumerate(windows)]
    best = windows[-1].metadata[0]
    found = task.decode(record, windows, tables, Tokenizers(words, 64))
    assert (found.start, found.end) == best


def test_nothing_is_the_answer_where_it_is_better_by_more_than_the_threshold(words):
    record = question()
    how = QaSettings(unanswerable=True)
    ((window,),) = windows_of(Qa(how), [record], words)
    table = scored(window, 3, 4)  # 10 together
    table[0] = 5.5  # [CLS]: 11
    assert Qa(how).decode(record, [window], [table], Tokenizers(words, 64)).text == ""
    generous = Qa(how.model_copy(update={"threshold": 1.5}))
    assert generous.decode(record, [window], [table], Tokenizers(words, 64)).text == "october 1973"


def made(text, nothing):
    candidate = Candidate(text, 0, len(text), 1.0, 0.9)
    return QaAnswer(text, 0, len(text), 0.9, nothing, (candidate,))


def test_the_threshold_that_is_settled_is_the_best_of_all():
    records = [question("cat"), question(number=2), question("paris", number=3), question(number=4)]
    said = [made("cat", -3.0), made("dog", 2.0), made("paris", 1.0), made("mat", -1.0)]
    task = Qa(QaSettings(unanswerable=True))
    settled, found = task.choose_thresholds(records, said)
    best = settled.score(records, found)["f1"]
    for threshold in np.arange(-5, 5, 0.1):
        other = Qa(QaSettings(unanswerable=True, threshold=float(threshold)))
        again = [other._with_threshold(answer) for answer in said]
        assert other.score(records, again)["f1"] <= best + 1e-9
    assert best == 0.75  # cat, paris and the second; the fourth is answered although it should not


@pytest.mark.parametrize(
    ("said", "truth", "exact", "f1"),
    [
        ("Eiffel Tower", "the Eiffel Tower!", 1.0, 1.0),  # articles and punctuation do not count
        ("in the Eiffel tower", "Eiffel Tower", 0.0, 0.8),  # 2 of 3 said, 2 of 2 true
        ("Paris", "London", 0.0, 0.0),
        ("", "", 1.0, 1.0),
        ("Paris", "", 0.0, 0.0),
        ("", "Paris", 0.0, 0.0),
        ("a the an", "", 1.0, 1.0),  # nothing is left of it
        ("10-20", "1020", 1.0, 1.0),  # punctuation goes without a space
        ("cat cat", "cat", 0.0, 2 / 3),  # a word counts as often as it is there
    ],
)
def test_squads_rules_by_hand(said, truth, exact, f1):
    spans = [Span(truth, 0)] if truth else []
    assert best_match(said, spans) == (exact, pytest.approx(f1))


def test_of_several_true_answers_the_best_counts():
    spans = [Span("October 1973", 0), Span("1973", 8)]
    assert best_match("1973", spans) == (1.0, 1.0)
    assert word_f1("1973", "October 1973") == pytest.approx(2 / 3)
    assert normalized("The  EIFFEL-tower, an icon") == "eiffeltower icon"


def test_every_question_has_an_answer_in_order(task, network_for, words):
    some = [question("cat", number=i, context=CONTEXT * (1 + i % 3)) for i in range(7)]
    found = list(answer_records(LiveForward(network_for(task)), Tokenizers(words, 24), task, some))
    assert [record.id for record, _ in found] == [record.id for record in some]
    for record, answer in found:
        assert record.context[answer.start : answer.end] == answer.text


def test_without_answers_there_is_nothing_to_learn():
    with pytest.raises(DataError, match="none of 2 questions has an answer"):
        Qa.learn(QaSettings(), [question(), question(number=2)])


def test_questions_without_answers_make_some_unanswerable():
    assert Qa.learn(QaSettings(), [question("cat"), question(number=2)]).config.unanswerable
    assert not Qa.learn(QaSettings(), [question("cat")]).config.unanswerable
