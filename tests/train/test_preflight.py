"""Preflight: a run that cannot succeed is refused before it starts, and a good one is confirmed."""

import math
import re

import pytest
import torch

from tests.corpora import corpus_of, tokenizer_for
from tests.train.conftest import Heard, recipe
from unmask.jobs.inputs.corpus import CorpusSource, objective_for
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.objectives.base import JointObjective
from unmask.system.distributed import Processes
from unmask.system.signals import StopRequest
from unmask.text.tokens import Tokenizers
from unmask.train import preflight as module
from unmask.train.evaluator import Evaluator
from unmask.train.ingredients import Digest, Ingredients
from unmask.train.preflight import PreflightError, preflight
from unmask.train.run_folder import RunFolder
from unmask.train.site import Site


class ByLabels(JointObjective):
    """An objective whose first loss depends on labels, so that it cannot be known before."""

    chance = None


def checked(
    corpus, place, *, unknown=False, plain=4.2, vocab_size=None, change=None, **settings
) -> list[str]:
    """What preflight says of a run on a corpus; `change` does something to the network first."""
    made = recipe(**settings)
    vocabulary = corpus.tokenizer.vocabulary
    objective = objective_for(made, vocabulary)
    objective = ByLabels([*objective.readers]) if unknown else objective
    config = made.model.config(vocab_size or len(vocabulary))
    torch.manual_seed(0)
    network = Network(Shape.of(config, objective.heads(Shape.of(config))))
    if change:
        change(network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    evaluator = Evaluator()
    evaluator.plain_loss = plain
    given = Ingredients(
        Tokenizers(corpus.tokenizer, config.max_length),
        network,
        objective,
        CorpusSource(corpus, made, objective),
        evaluator,
        Digest("corpus", corpus.digest),
    )
    console = Heard()
    site = Site(Processes(), RunFolder(place, console), console, StopRequest(), 0.0)
    preflight(given, site)
    assert all(torch.equal(before[n], t) for n, t in network.state_dict().items()), "not touched"
    return console.said


def spoil(network, by=30.0):
    """Expect the rarer half of the words."""
    network.heads["tokens"].bias.data[len(network.heads["tokens"].bias) // 2 :] = by


@pytest.mark.parametrize(("plain", "beside"), [(4.2, r", unigram 4\.20"), (None, "")])
def test_a_sane_run_passes_and_is_told_what_was_seen(corpus, tmp_path, plain, beside):
    (line,) = checked(corpus, tmp_path, plain=plain)
    found = re.fullmatch(
        rf"preflight: loss before training (\d\.\d\d) \(ln V (\d\.\d\d){beside}\); "
        r"memorising one batch lowers it to (\d\.\d\d)",
        line,
    )
    first, ln_v, last = map(float, found.groups())
    assert ln_v == pytest.approx(math.log(len(corpus.tokenizer.vocabulary)), abs=0.01)
    assert first == pytest.approx(ln_v, rel=0.1)
    assert last < 0.7 * first


@pytest.mark.parametrize("pairs", ["nsp", "sop", "off"])
def test_every_kind_of_examples_can_be_sane(corpus, tmp_path, pairs):
    assert len(checked(corpus, tmp_path, data={"pairs": pairs})) == 1


def test_the_loss_that_is_compared_with_ln_v_is_the_main_one_alone(corpus, tmp_path):
    """What pairs add to it would be as much as a network does that has gone wrong."""
    lines = [checked(corpus, tmp_path, data={"pairs": pairs})[0] for pairs in ("nsp", "off")]
    firsts = [float(re.search(r"before training (\d\.\d\d)", line)[1]) for line in lines]
    assert firsts[0] == pytest.approx(firsts[1], abs=0.2)  # pairs alone have a loss of 0.69


def test_a_network_of_too_few_tokens_is_refused(corpus, tmp_path):
    size = len(corpus.tokenizer.vocabulary)
    says = f"^preflight: the tokenizer has {size} tokens, but .* embeddings for only {size - 1}\\."
    with pytest.raises(PreflightError, match=says):
        checked(corpus, tmp_path, vocab_size=size - 1)


def test_an_untrained_loss_far_from_ln_v_is_refused(corpus, tmp_path):
    says = (
        r"^preflight: the untrained network has a loss of \d+\.\d\d; expected about ln V = 4\.\d\d"
    )
    with pytest.raises(PreflightError, match=says):
        checked(corpus, tmp_path, change=spoil)


def test_a_network_that_cannot_learn_is_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OVERFIT_STEPS", 1)  # as if thirty did no more than one
    says = (
        r"^preflight: 1 steps on one batch lowered its loss only from 4.\d\d to 4.\d\d; need less"
    )
    with pytest.raises(PreflightError, match=says):
        checked(corpus, tmp_path)


def test_where_the_first_loss_cannot_be_known_there_is_only_a_warning(
    corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "OVERFIT_STEPS", 1)
    told, warned = checked(corpus, tmp_path, unknown=True)
    assert re.fullmatch(
        r"preflight: loss before training 4.\d\d; memorising one batch lowers it to 4.\d\d", told
    )
    assert warned.startswith("warning: preflight: 1 steps on one batch lowered its loss only from")


def test_a_high_first_loss_is_no_warning_where_it_cannot_be_known(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OVERFIT_STEPS", 100)  # it is longer on its way

    def a_little(network):
        spoil(network, 3.0)

    with pytest.raises(PreflightError, match="expected about ln V"):
        checked(corpus, tmp_path, change=a_little)
    (told,) = checked(corpus, tmp_path, unknown=True, change=a_little)
    assert told.startswith("preflight: loss before training ")


def test_a_run_begins_with_it_unless_told_not_to(run):
    short = {"schedule": {"steps": 1}, "evaluate": {"times": 0}}
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


def test_a_refused_run_says_why_and_leaves_nothing_behind(run, tmp_path):
    equal = [["w0 w1 w2 w3", "w0 w1 w2 w3"]] * 200
    corpus = corpus_of(tmp_path / "equal", equal, tokenizer_for(equal, ["w9"]))
    with pytest.raises(PreflightError):
        run(check=True, on=corpus)
    assert not (tmp_path / "run").exists()
