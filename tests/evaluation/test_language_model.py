"""Evaluation: the same examples for every run, always at 15 %, beside baselines done by hand."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from tests.corpora import corpus_of
from tests.train.conftest import LENGTH, Heard, metrics, recipe
from unmask.data.corpus.examples import NO_PAIR, split_documents
from unmask.data.corpus.stream import Stream
from unmask.evaluation.language_model import SEED, Evaluation, MaskedTokens, baselines
from unmask.jobs.inputs.corpus import objective_for
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.system.distributed import Processes
from unmask.system.errors import SettingsError
from unmask.text.vocabulary import SPECIALS
from unmask.train.run_folder import read_metrics

ALL = 10**9  # tokens: every row that there is


@pytest.fixture(scope="module")
def held(corpus):
    """The stream of the held-out documents."""
    made = recipe(data={"held_out": 4})
    _, documents = split_documents(len(corpus.documents) - 1, 4)
    return Stream(corpus, documents, made.data, SEED, LENGTH)


@pytest.fixture(scope="module")
def objective(corpus):
    return objective_for(recipe(), corpus.tokenizer.vocabulary)


@pytest.fixture(scope="module")
def network(corpus):
    return network_of(recipe(model={"init_std": 0.2}), corpus)


def network_of(made, corpus):
    """Random weights for what a recipe learns from a corpus."""
    vocabulary = corpus.tokenizer.vocabulary
    config = made.model.config(len(vocabulary))
    heads = objective_for(made, vocabulary).heads(Shape.of(config))
    torch.manual_seed(0)
    return Network(Shape.of(config, heads)).eval()


def evaluation(held, objective, *, tokens=ALL, micro_rows=2, processes=None):
    where = processes or Processes()
    return Evaluation(held, objective, where, tokens=tokens, micro_rows=micro_rows)


def test_unigram_baseline_by_hand(tmp_path):
    corpus = corpus_of(tmp_path, [["a a a b", "a a b"], ["a b c"]])  # 6 a, 3 b, 1 c
    ids = corpus.tokenizer.vocabulary.ids
    found = baselines(
        corpus, np.array([ids["a"], ids["b"], ids["b"], ids["c"]]), Processes(), choices=8
    )
    whole = 6.5 + 3.5 + 1.5 + 5 * 0.5  # half a token more for each of eight, also the special ones
    logs = [math.log(6.5 / whole), 2 * math.log(3.5 / whole), math.log(1.5 / whole)]
    assert found["unigram_loss"] == pytest.approx(-sum(logs) / 4)
    assert found["unigram_accuracy"] == 0.25  # always "a"
    assert found["ln_v"] == pytest.approx(math.log(8))


def test_special_tokens_are_not_guessed_by_frequency(tmp_path):
    corpus = corpus_of(tmp_path, [["x y [MASK] [MASK] [MASK] [UNK] [UNK] [UNK] x"], ["y"]])
    ids = corpus.tokenizer.vocabulary.ids
    found = baselines(corpus, np.array([ids["x"]]), Processes(), choices=7)
    assert found["unigram_accuracy"] == 1.0
    assert found["unigram_loss"] == pytest.approx(-math.log(2.5 / (2.5 + 2.5 + 5 * 0.5)))


def test_where_no_words_are_guessed_only_chance_is_there_to_compare_with(corpus):
    found = baselines(corpus, np.zeros(0, dtype=np.int64), Processes(), choices=2)
    assert found["ln_v"] == pytest.approx(0.6931, abs=1e-4)
    assert set(found) == {"ln_v"}


def test_scores_are_means_over_all_answers_spelled_out(held, objective, network):
    found = evaluation(held, objective, micro_rows=3)
    logs, right, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in found.batches:
            hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
            scores = network.token_scores(hidden).flatten(0, 1)
            places = zip(
                batch.labels["mlm_places"].tolist(),
                batch.labels["mlm_tokens"].tolist(),
                strict=True,
            )
            for place, token in places:
                logs -= scores[place].log_softmax(-1)[token].item()
                right += scores[place].argmax().item() == token
                count += 1
    scores = found(network, objective, {})
    assert scores["mlm"] == pytest.approx(logs / count, rel=1e-5)
    assert scores["mlm_accuracy"] == right / count
    assert count > 30


def test_pairs_are_scored_over_those_that_have_an_answer(held, objective, network):
    found = evaluation(held, objective)
    labels = torch.cat([batch.labels["pair"] for batch in found.batches])
    asked = int((labels != NO_PAIR).sum())
    assert 0 < asked < len(labels)
    share = found(network, objective, {})["pair_accuracy"]
    assert share * asked == pytest.approx(round(share * asked))


def test_rows_at_a_time_change_nothing(held, objective, network):
    one, other = (evaluation(held, objective, micro_rows=m) for m in (1, 7))
    assert np.array_equal(one.answers(), other.answers())
    expected = other(network, objective, {})
    assert one(network, objective, {}) == pytest.approx(expected, rel=1e-5)


def test_an_untrained_network_is_near_ln_v(held, objective, corpus):
    size, fresh = len(corpus.tokenizer.vocabulary), network_of(recipe(), corpus)
    scores = evaluation(held, objective)(fresh, objective, {})
    assert scores["mlm"] == pytest.approx(math.log(size), rel=0.05)


def test_tokens_bound_the_rows(held, objective):
    rows = sum(len(b.tokens) for b in evaluation(held, objective, tokens=5 * LENGTH).batches)
    assert rows == 5
    assert sum(len(b.tokens) for b in evaluation(held, objective, tokens=1).batches) == 1
    everything = sum(len(b.tokens) for b in evaluation(held, objective).batches)
    assert everything == len(held.epoch(0))


def test_processes_share_the_batches(held, objective):
    whole = evaluation(held, objective).batches
    shares = [evaluation(held, objective, processes=Processes(r, 2)).batches for r in (0, 1)]
    numbers = sorted(int(n) for batch in whole for n in batch.number)
    shared = sorted(int(n) for share in shares for batch in share for n in batch.number)
    assert numbers == shared


def first_evaluation(folder):
    return metrics(folder, "eval")[0]


def test_the_examples_are_the_same_for_every_run_on_a_corpus(run):
    """Whatever the seed and the masking, so that numbers of runs can be compared."""
    short = {"schedule": {"steps": 1}, "evaluate": {"times": 1}}
    plain = first_evaluation(run("a", **short))
    seeded = first_evaluation(run("b", seed=7, **short))
    masking = {
        "objective": {
            "name": "mlm",
            "mask_rate": 0.4,
            "whole_word_masking": True,
            "mask_share": 0.2,
        }
    }
    masked = first_evaluation(run("c", **masking, **short))
    assert plain["mlm"] != seeded["mlm"], "other weights"
    for other in (seeded, masked):
        assert other["unigram_loss"] == plain["unigram_loss"]
        assert [case["text"] for case in other["masked_predictions"]] == [
            c["text"] for c in plain["masked_predictions"]
        ]
    assert masked["mlm"] == pytest.approx(plain["mlm"], rel=1e-6), "the same weights and examples"


def test_what_is_evaluated_on_is_held_out(run, corpus, monkeypatch):
    """A corpus whose held-out documents have words of their own, which training never sees."""
    from unmask.data.corpus import stream as module

    seen = {"train": set(), "eval": set()}
    plain = module.Stream.batch

    def batch(self, rows):
        made = plain(self, rows)
        seen["eval" if self.seed == SEED else "train"] |= set(made.tokens.flatten().tolist())
        return made

    monkeypatch.setattr(module.Stream, "batch", batch)
    documents = [
        [f"h{i} h{i + 1} h{i + 2}", f"h{i + 3} h{i}"]
        if i % 10 == 9
        else [f"t{i} t{i + 1}", f"t{i}"]
        for i in range(100)
    ]
    folder = corpus.path.parent.parent / "apart"
    apart = corpus_of(folder, documents)
    run("apart", on=apart, schedule={"steps": 20}, check=True)
    names = apart.tokenizer.vocabulary.tokens
    first = {kind: {names[i][0] for i in ids} - {"["} for kind, ids in seen.items()}
    assert first == {"train": {"t"}, "eval": {"h"}}


def test_a_run_says_its_scores_beside_the_baselines(run):
    said = []
    folder = run(said=said, schedule={"steps": 2}, evaluate={"times": 1})
    entry = first_evaluation(folder)
    assert any(
        line.startswith(
            f"step 0: held-out loss {entry['mlm']:.3f} (unigram {entry['unigram_loss']:.3f}, "
            f"ln V {entry['ln_v']:.3f}); accuracy: masked tokens {entry['mlm_accuracy']:.1%}, "
            "sentence pairs "
        )
        for line in said
    )


def test_too_few_held_out_documents_are_refused_with_what_to_do(run, corpus):
    with pytest.raises(ValueError) as error:
        run(data={"held_out": 60})
    assert str(error.value) == (
        f"{corpus.path}: one in 60 of 80 documents is held out: 1; expected at least two. Hold out "
        "more documents (--set data.held_out=5), or none (=0)."
    )


def test_without_held_out_documents_nothing_is_evaluated(run):
    folder = run(data={"held_out": 0}, schedule={"steps": 2})
    assert metrics(folder, "eval") == []
    assert len(metrics(folder)) == 2


@pytest.fixture
def speaking(tmp_path, objective):
    """A corpus of words, with blanks to fill: whole words far from the ends of their texts."""
    words = "the old river carried whole trees down to a quiet sea while nobody slept that".split()
    documents = [[" ".join(words[i % 5 :] + words[: i % 5]) for i in range(8)] for _ in range(20)]
    corpus = corpus_of(tmp_path, documents)
    schedule = {"phases": [{"length": 64, "batch_tokens": 512}]}
    made = recipe(schedule=schedule, model={"init_std": 0.2})
    reader = objective_for(made, corpus.tokenizer.vocabulary)
    stream = Stream(corpus, np.arange(20), made.data, SEED, 64)
    found = Evaluation(stream, reader, Processes(), tokens=ALL, micro_rows=4)
    return corpus, found, network_of(made, corpus)


def test_blanks_are_filled_with_the_three_best_guesses(speaking):
    corpus, found, network = speaking
    blanks = MaskedTokens(found, corpus, count=3)
    cases = blanks(network, torch.device("cpu"))
    assert len(cases) == 3
    names, ids = corpus.tokenizer.vocabulary.tokens, corpus.tokenizer.vocabulary.ids
    for case, (tokens, place, truth) in zip(cases, blanks.cases, strict=True):
        assert case["text"].count("[MASK]") == 1
        assert tokens.count(ids["[MASK]"]) == 1
        assert tokens[place] == ids["[MASK]"]
        assert case["truth"] == names[truth]
        row = torch.tensor([tokens])
        index = torch.arange(len(tokens))[None]
        with torch.no_grad():
            hidden = network.encoder(row, row * 0, index, row * 0)
            shares = network.token_scores(hidden)[0, place].softmax(-1)
        best = sorted(range(len(names)), key=lambda i: -shares[i])[:3]
        assert [token for token, _ in case["predictions"]] == [names[i] for i in best]
        for i, (_, share) in zip(best, case["predictions"], strict=True):
            assert share == pytest.approx(shares[i].item(), abs=1e-4)


def test_a_blank_shows_the_true_neighbours(speaking):
    """Other masked tokens of the text are shown unmasked: one is predicted at a time."""
    corpus, found, _ = speaking
    sentences = " ".join(corpus.tokenizer.decode(corpus.tokens(0, corpus.size)).split())
    for tokens, place, truth in MaskedTokens(found, corpus).cases:
        whole = [truth if i == place else token for i, token in enumerate(tokens)]
        said = corpus.tokenizer.decode(whole[1:-1])
        assert said.split()[0] in sentences
        middle = " ".join(said.split()[place - 4 : place + 3])
        assert middle in sentences


def test_a_report_is_drawn_at_every_evaluation(run, tmp_path):
    seen = []

    class Looking(Heard):
        def progress(self, what, *numbers, **more):
            if what == "training":
                seen.append((tmp_path / "run" / "report.html").exists())

    folder = run(console=Looking())
    assert seen[-1]
    assert read_metrics(folder)


def test_pairs_alone_can_be_learned_beside_chance(run):
    said = []
    folder = run(said=said, objective={"name": "pairs"}, check=True)
    entry = metrics(folder, "eval")[-1]
    assert entry["targets"] == {"pair": "sentence pairs"}
    assert entry["pair_chance"] == 0.5
    assert entry["ln_v"] == pytest.approx(math.log(2))
    assert not {"mlm", "unigram_loss", "unigram_accuracy"} & set(entry)
    assert any(line.startswith("preflight: loss before training 0.") for line in said)
    assert any(
        f"held-out loss {entry['pair']:.3f} (ln V 0.693); accuracy: sentence pairs" in s
        for s in said
    )
    assert "Loss on sentence pairs" in (folder / "report.html").read_text()


def test_pairs_alone_need_pairs(run):
    with pytest.raises(SettingsError, match='needs sentence pairs, but data.pairs is "off"'):
        run(objective={"name": "pairs"}, data={"pairs": "off"})


def test_a_run_by_the_clock_spends_a_tenth_of_it_on_evaluations(run, monkeypatch, clock):
    """On a clock that goes on by a second at each look, a pass over the probe takes one second."""
    clock.tick = 1.0
    monkeypatch.setattr("unmask.evaluation.held_out.PROBE_TOKENS", 2 * LENGTH)
    how = {"schedule": {"steps": None, "minutes": 2.0}, "data": {"held_out": 4}}
    folder = run(**how, evaluate={"times": 3})
    # 120 s / 10 for four evaluations, one before the first step: 3 s, three probes of two rows
    assert {e["evaluated_tokens"] for e in metrics(folder, "eval")} == {6 * LENGTH}


def test_where_a_tenth_is_not_enough_there_are_fewer_evaluations(run, monkeypatch, clock):
    """12 s for evaluations, and the smallest takes 3 s: one before the first step, three after."""
    clock.tick = 3.0
    monkeypatch.setattr("unmask.evaluation.held_out.PROBE_TOKENS", 2 * LENGTH)
    how = {"schedule": {"steps": None, "minutes": 2.0}, "data": {"held_out": 4}}
    folder = run(**how, evaluate={"times": 20})
    found = metrics(folder, "eval")
    assert {(e["evaluated_tokens"], e["evaluations"]) for e in found} == {(2 * LENGTH, 3)}
    assert len(found) == 4


def test_a_run_by_the_clock_that_is_resumed_is_evaluated_on_as_much_as_before(run, monkeypatch):
    how = {"schedule": {"steps": None, "minutes": 0.01}, "data": {"held_out": 4}}
    monkeypatch.setattr("unmask.evaluation.held_out.PROBE_TOKENS", LENGTH)
    folder = run(**how, evaluate={"times": 1})
    lines = metrics(folder, "eval")
    text = "".join(json.dumps({**e, "evaluated_tokens": 3 * LENGTH}) + "\n" for e in lines)
    (folder / "metrics.jsonl").write_text(text)
    for place in [*(folder / "checkpoints").glob("step-*")]:
        shutil.rmtree(place)
    shutil.rmtree(folder / "model")
    run(**how, evaluate={"times": 1}, resume=True)
    assert {e["evaluated_tokens"] for e in metrics(folder, "eval")} == {3 * LENGTH}


def test_a_run_whose_rows_grow_is_evaluated_on_the_last_ones(run, monkeypatch):
    """Where positions need not be learned: 128 tokens are four rows of 32, or two of 64."""
    phases = [{"share": 0.5, "length": n, "batch_tokens": 256} for n in (LENGTH, 2 * LENGTH)]
    shapes = set()
    evaluate = Evaluation.__call__

    def looked_at(self, *given):
        shapes.update(tuple(batch.tokens.shape) for batch in self.batches)
        return evaluate(self, *given)

    monkeypatch.setattr(Evaluation, "__call__", looked_at)
    few = {"times": 1, "tokens": 4 * LENGTH}
    fits = {"micro_batch_tokens": 4 * LENGTH}
    rotary = {"positions": "rotary"}
    run(schedule={"phases": phases}, model=rotary, evaluate=few, loop=fits)
    assert shapes == {(2, 2 * LENGTH)}


def test_a_network_may_begin_with_the_frequencies_of_words(run):
    """Then its first loss is that of guessing by frequency, not that of knowing nothing."""
    plain, known = (
        metrics(run(str(begins), objective={"init_output_bias": begins}), "eval")[0]
        for begins in (False, True)
    )
    assert abs(plain["mlm"] - plain["ln_v"]) < 0.2
    assert abs(known["mlm"] - known["unigram_loss"]) < 0.2
    assert known["unigram_loss"] < known["ln_v"] - 0.5


def test_frequencies_are_shares_of_the_text_and_none_is_zero(corpus):
    shares = corpus.frequencies
    counts = np.bincount(np.concatenate(corpus.shards), minlength=len(shares))
    assert shares.sum() == pytest.approx(1.0)
    assert (shares > 0).all()
    assert shares.argmax() == counts[5:].argmax() + 5
    assert shares[: len(SPECIALS)] == pytest.approx(0.5 / (counts[5:] + 0.5).sum(), rel=0.01)
