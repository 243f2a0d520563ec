"""A corpus before the first step: what cannot be learned from is refused, and the rest reported."""

import re

import pytest

from tests.corpora import chatter, corpus_of
from tests.train.conftest import recipe
from unmask.jobs.inputs.corpus import CorpusSource, check_corpus, objective_for
from unmask.objectives.base import JointObjective
from unmask.objectives.mlm import MaskedLM
from unmask.train.preflight import PreflightError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_of(tmp_path_factory.mktemp("corpus"), chatter(80))


def checked(corpus, *, broken=None, **settings) -> list[str]:
    """What is reported of a corpus."""
    made = recipe(**settings)
    asked = broken or objective_for(made, corpus.tokenizer.vocabulary)
    said: list[str] = []
    check_corpus(CorpusSource(corpus, made, asked), said.append)
    return said


def test_a_sane_corpus_passes_and_what_was_seen_is_reported(corpus):
    (line,) = checked(corpus)
    found = re.fullmatch(
        r"preflight: (\d+\.\d)% of the tokens are predicted, "
        r"(\d+)% of those are replaced by \[MASK\]",
        line,
    )
    rate, masked = map(float, found.groups())
    assert 14.0 < rate < 16.0
    assert 70 < masked < 90


@pytest.mark.parametrize("pairs", ["nsp", "sop", "off"])
def test_every_kind_of_examples_can_be_sane(corpus, pairs):
    assert len(checked(corpus, data={"pairs": pairs})) == 1


def test_documents_of_one_sentence_each_are_refused(tmp_path):
    lonely = corpus_of(tmp_path, [[sentences[0]] for sentences in chatter(80)])
    says = rf"^preflight: {lonely.path}: no sentence pairs, because every document has a single"
    with pytest.raises(PreflightError, match=says):
        checked(lonely)
    assert checked(lonely, data={"pairs": "off"})


def test_pairs_that_are_not_balanced_are_refused(tmp_path):
    """Equal documents of two equal sentences: another text is never to be found."""
    equal = corpus_of(tmp_path, [["w0 w1 w2 w3", "w0 w1 w2 w3"]] * 200)
    says = r"^preflight: 0\.0% of the sentence pairs are negative; need about half\. The corpus may"
    with pytest.raises(PreflightError, match=says):
        checked(equal)


def test_a_few_pairs_may_be_out_of_balance_by_chance(tmp_path):
    few = corpus_of(tmp_path, chatter(6))
    assert checked(few, data={"held_out": 0})


def test_sentences_that_come_again_and_again_are_warned_of(tmp_path):
    documents = chatter(80)
    again = [[*sentences, *documents[0]] for sentences in documents]
    warned, passed = checked(corpus_of(tmp_path, again))
    assert re.match(
        r"warning: about \d\d% of the sentences are duplicates, which the model", warned
    )
    assert warned.endswith("Remove repeated documents")
    assert passed.startswith("preflight: ")


def test_special_tokens_that_are_masked_are_refused(corpus):
    usual = objective_for(recipe(), corpus.tokenizer.vocabulary)
    broken = [r for r in usual.readers if isinstance(r, MaskedLM)][0]
    broken.special[:] = False
    with pytest.raises(
        PreflightError, match="preflight: internal error: special tokens are masked"
    ):
        checked(corpus, broken=JointObjective(list(usual.readers)))


def test_where_no_tokens_are_predicted_there_is_nothing_to_report(corpus):
    assert checked(corpus, objective={"name": "pairs"}) == []
