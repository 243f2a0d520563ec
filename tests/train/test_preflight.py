"""Preflight: what cannot go well is refused before the first step, and a sane run is told so."""

import math
import re

import pytest
import torch

from tests.corpora import chatter, corpus_of, tokenizer_for
from tests.train.conftest import recipe
from unmask.model.network import Network
from unmask.objectives.base import OnePass
from unmask.objectives.mlm import MaskedLM
from unmask.train import preflight as module
from unmask.train.distributed import Processes
from unmask.train.evaluate import Baselines
from unmask.train.preflight import PreflightError, preflight
from unmask.train.pretrain import CorpusSource, objective_for


def checked(corpus, *, objective=None, vocab_size=None, change=None, **settings) -> list[str]:
    """What preflight says of a run on a corpus; `change` does something to the network first."""
    made = recipe(**settings)
    vocabulary = corpus.tokenizer.vocabulary
    usual, heads = objective_for(made, vocabulary)
    config = made.network(len(vocabulary))
    torch.manual_seed(0)
    if vocab_size:
        config = config.model_copy(update={"vocab_size": vocab_size})
    network = Network(config, heads)
    if change:
        change(network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    source = CorpusSource(corpus, made, objective or usual, Processes())
    said: list[str] = []
    plain = Baselines(4.6, 4.2, 0.1)
    preflight(network, objective or usual, source, corpus, plain, said.append)
    assert all(torch.equal(before[n], t) for n, t in network.state_dict().items()), "not touched"
    return said


def test_a_sane_run_passes_and_is_told_what_was_seen(corpus):
    (line,) = checked(corpus)
    found = re.fullmatch(
        r"preflight: (\d+\.\d)% of the tokens hidden, (\d+)% of those as \[MASK\]; untrained loss "
        r"(\d\.\d\d) \(ln V (\d\.\d\d), unigram 4\.20\); one batch learned by heart to (\d\.\d\d)",
        line,
    )
    rate, masked, first, ln_v, last = map(float, found.groups())
    assert 14.0 < rate < 16.0
    assert 70 < masked < 90
    assert ln_v == pytest.approx(math.log(len(corpus.tokenizer.vocabulary)), abs=0.01)
    assert first == pytest.approx(ln_v, rel=0.1)
    assert last < 0.7 * first


@pytest.mark.parametrize("pairs", ["nsp", "sop", "off"])
def test_every_kind_of_examples_can_be_sane(corpus, pairs):
    assert len(checked(corpus, examples={"pairs": pairs})) == 1


def test_a_network_of_too_few_tokens_is_refused(corpus):
    size = len(corpus.tokenizer.vocabulary)
    says = f"^preflight: ids up to {size - 1} and a network of {size - 1} tokens; need one for each"
    with pytest.raises(PreflightError, match=says):
        checked(corpus, vocab_size=size - 1)


def test_documents_of_one_sentence_each_are_refused(tmp_path):
    lonely = corpus_of(tmp_path, [[sentences[0]] for sentences in chatter(80)])
    says = rf"^preflight: {lonely.path}: not one pair; every document has a single sentence. Keep "
    with pytest.raises(PreflightError, match=says):
        checked(lonely)
    assert checked(lonely, examples={"pairs": "off"})


def test_pairs_that_are_not_balanced_are_refused(tmp_path):
    """Equal documents of two equal sentences: another text is never to be found."""
    equal = corpus_of(tmp_path, [["w0 w1 w2 w3", "w0 w1 w2 w3"]] * 200)
    says = (
        r"^preflight: 0\.0% of the pairs are wrong ones; need half\. Few or equal documents do th"
    )
    with pytest.raises(PreflightError, match=says):
        checked(equal)


def test_a_few_pairs_may_be_out_of_balance_by_chance(tmp_path):
    few = corpus_of(tmp_path, chatter(6))
    assert checked(few, examples={"held_out": 0})


def test_sentences_that_come_again_and_again_are_warned_of(tmp_path):
    documents = chatter(80)
    again = [[*sentences, *documents[0]] for sentences in documents]
    warned, passed = checked(corpus_of(tmp_path, again))
    assert re.match(r"warning: about \d\d% of the sentences have occurred before; the mod", warned)
    assert warned.endswith("Remove repeated documents")
    assert passed.startswith("preflight: ")


def test_an_untrained_loss_far_from_ln_v_is_refused(corpus):
    def spoil(network):
        network.token_head.bias.data[: len(network.token_head.bias) // 2] = 30.0

    says = r"^preflight: an untrained network has a loss of \d+\.\d\d; need about ln V = 4\.\d\d"
    with pytest.raises(PreflightError, match=says):
        checked(corpus, change=spoil)


def test_a_network_that_cannot_learn_is_refused(corpus, monkeypatch):
    monkeypatch.setattr(module, "HEART_STEPS", 1)  # as if thirty did no more than one
    says = (
        r"^preflight: 1 steps on one batch lowered its loss only from 4.\d\d to 4.\d\d; need less"
    )
    with pytest.raises(PreflightError, match=says):
        checked(corpus)


def test_hidden_special_tokens_are_refused(corpus):
    vocabulary = corpus.tokenizer.vocabulary
    usual, _ = objective_for(recipe(), vocabulary)
    broken = [r for r in usual.readers if isinstance(r, MaskedLM)][0]
    broken.special[:] = False
    with pytest.raises(
        PreflightError, match="preflight: special tokens are hidden; a fault of ours"
    ):
        checked(corpus, objective=OnePass(usual.readers))


def test_a_run_begins_with_it_unless_told_not_to(run):
    short = {"schedule": {"steps": 1}, "train": {"evaluations": 0}}
    with_it, without = [], []
    run("with", check=True, said=with_it, **short)
    run("without", check=False, said=without, **short)
    assert any(line.startswith("preflight: ") for line in with_it)
    assert not any("preflight" in line for line in without)


def test_a_run_that_has_begun_is_not_checked_again(run):
    said = []
    run("twice", check=True, schedule={"steps": 1})
    run("twice", check=True, schedule={"steps": 1}, resume=True, said=said)
    assert not any("preflight" in line for line in said)


def test_checking_changes_nothing_that_is_learned(run, whole):
    checked_run = run("checked", check=True)
    weights = "model/model.safetensors"
    assert (checked_run / weights).read_bytes() == (whole / weights).read_bytes()


def test_a_refused_run_says_why_before_anything_is_trained(run, tmp_path):
    equal = [["w0 w1 w2 w3", "w0 w1 w2 w3"]] * 200
    corpus = corpus_of(tmp_path / "equal", equal, tokenizer_for(equal, ["w9"]))
    with pytest.raises(PreflightError):
        run(check=True, on=corpus)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
