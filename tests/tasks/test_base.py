"""Answers in general: every record has one, in order, for any batches and lengths."""

import pytest
import torch

from unmask.data.labelled.columns import Sample
from unmask.infer import answering
from unmask.infer.answering import answer_records
from unmask.system.errors import SettingsError, TextTooLong
from unmask.tasks.classify import Classify, ClassifySettings
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import LiveForward
from unmask.tasks.results import Agreement, AnswerCounts, Detail, Mistake
from unmask.text.tokens import Tokenizers


@pytest.fixture
def task():
    return Classify(ClassifySettings(), ["bad", "good"])


@pytest.fixture
def forward(task, network_for):
    return LiveForward(network_for(task))


def samples(*lengths):
    """Texts with these numbers of words."""
    return [Sample("cat " * n, None, None, f"here:{i}") for i, n in enumerate(lengths, 1)]


def test_texts_that_are_too_long_are_cut_and_counted(forward, task, words):
    tally = AnswerCounts()
    found = list(
        answer_records(forward, Tokenizers(words, 8), task, samples(3, 9, 6, 20), tally=tally)
    )
    assert len(found) == 4
    assert (tally.cut_texts, tally.cut_tokens) == (2, 3 + 14)


def test_or_refused_with_their_number_and_how_long_they_are(forward, task, words):
    with pytest.raises(TextTooLong, match="text 2: 11 tokens; the model reads at most 8") as error:
        list(answer_records(forward, Tokenizers(words, 8), task, samples(3, 9, 6), truncate=False))
    assert error.value.number == 2
    list(answer_records(forward, Tokenizers(words, 8), task, samples(3, 6), truncate=False))


def test_few_records_are_held_where_they_are_long(forward, words, monkeypatch):
    monkeypatch.setattr(answering, "HELD", 30)
    sizes = []

    class Counting(Classify):
        def run(self, forward, windows, tokens, *, known=None):
            sizes.append(len(windows))
            return super().run(forward, windows, tokens, known=known)

    task = Counting(ClassifySettings(), ["bad", "good"])
    some = samples(*[4] * 20)  # sixteen characters each
    found = list(answer_records(forward, Tokenizers(words, 8), task, some))
    assert [record for record, _ in found] == some
    assert sizes == [2] * 10


def test_a_loss_is_asked_for_or_not_there(forward, task, words):
    known = [Sample("a cat", None, ("good",), "here:1"), Sample("a dog", None, ("bad",), "here:2")]
    tallies = [AnswerCounts(), AnswerCounts()]
    criterion = Criterion(forward.network, task.objective)
    for tally, wanted in zip(tallies, (criterion, None), strict=True):
        list(answer_records(forward, Tokenizers(words, 8), task, known, known=wanted, tally=tally))
    assert sum(tallies[0].counts) == 2
    assert tallies[0].mean > 0.0
    assert (sum(tallies[1].counts), tallies[1].mean) == (0, 0.0)


def test_what_answers_at_once_has_no_session(forward, task, words):
    with pytest.raises(SettingsError, match="classify: answers cannot be generated step by step"):
        task.session(forward, [], Tokenizers(words, 8))


def test_windows_in_less_memory_are_the_same_to_learn_from(task, words):
    known = [Sample("a cat sat", None, ("good",), "here:1")]
    ((_, (window,)),) = task.windows(known, Tokenizers(words, 8), learn=True)
    compact = window.compact()
    assert (list(compact.ids), list(compact.segments)) == (list(window.ids), list(window.segments))
    assert compact.ids.nbytes == 4 * len(window.ids)
    assert compact.truth == window.truth
    batches = [task.batch([own], Tokenizers(words, 8)) for own in (window, compact)]
    first, second = (batch.tensors() for batch in batches)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert batches[0].counts == {"classify": 1}
    assert task.batch([window], Tokenizers(words, 8), "mood").counts == {"mood": 1}


def test_only_the_worst_mistakes_are_kept_worst_first():
    wrong = [Mistake("here", str(i), "a", "b", float(i % 50)) for i in range(100)]
    kept = Detail(mistakes=wrong).mistakes
    assert len(kept) == 20
    assert [mistake.severity for mistake in kept] == sorted(
        (m.severity for m in kept), reverse=True
    )
    assert kept[0].severity == 49.0


def test_agreement_is_the_share_of_answers_that_are_the_same(task):
    found = Agreement.of([True, True, False, True])
    assert found.share == 0.75
    said = found.text.format(share=found.share, texts=4)
    assert said == "75.00% of the answers to 4 texts are the same"
