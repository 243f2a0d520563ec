"""One step: many batches as if they were one, and nothing that is not finite reaches a weight."""

import copy

import pytest
import torch

from tests.train.conftest import LENGTH, recipe
from unmask.data.examples import UNSAID
from unmask.data.stream import Cursor, Stream
from unmask.model.network import Network
from unmask.train.distributed import Processes
from unmask.train.optim import make_optimizer, read_moments
from unmask.train.pretrain import objective_for
from unmask.train.step import Piece, Trainee, take_step

ROWS = 8


@pytest.fixture(scope="module")
def objective(corpus):
    return objective_for(recipe(), corpus.tokenizer.vocabulary)[0]


@pytest.fixture(scope="module")
def stream(corpus):
    documents = torch.arange(len(corpus.documents) - 1).numpy()
    return Stream(corpus, documents, recipe().examples, 0, LENGTH)


def trainee(corpus, objective, **changes) -> Trainee:
    """The same start every time; without dropout unless asked."""
    heads = objective_for(recipe(), corpus.tokenizer.vocabulary)[1]
    config = recipe(model={"dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.1, **changes})
    torch.manual_seed(0)
    return Trainee(Network(config.network(len(corpus.tokenizer.vocabulary)), heads), objective)


def pieces(stream, objective, sizes, first=0):
    """So many rows each, from the same place of the corpus on."""
    found, at = [], first
    for number, size in enumerate(sizes):
        rows = [Cursor(0, at + i) for i in range(size)]
        found.append(Piece(objective.prepare(stream.batch(rows), 1), seed=number))
        at += size
    return found


def step(module, parts, optimizer=None, **how):
    optimizer = optimizer or make_optimizer(module, recipe().optimizer)
    return take_step(module, parts, optimizer, Processes(), **{"clip": 1.0, **how})


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("sizes", [[1, 4, 3], [4, 4], [1] * 8])
def test_several_batches_are_one_big_one(corpus, stream, objective, sizes):
    whole, parts = trainee(corpus, objective), trainee(corpus, objective)
    one = step(whole, pieces(stream, objective, [ROWS]))
    many = step(parts, pieces(stream, objective, sizes))
    assert set(one.losses) == {"mlm", "pair"}
    assert many.losses == pytest.approx(one.losses, rel=1e-5)
    assert many.norm == pytest.approx(one.norm, rel=1e-5)
    assert many.tokens == one.tokens
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], tensor, atol=1e-6, rtol=0, msg=name)


def test_batches_with_few_answers_do_not_count_for_more(corpus, stream, objective):
    """The mean is over answers, not over batches: the batches here differ in how many they have."""
    module = trainee(corpus, objective)
    parts = pieces(stream, objective, [1, 6, 1])
    sums, counts = {"mlm": 0.0, "pair": 0.0}, {"mlm": 0, "pair": 0}
    for part in parts:
        found = module(part.batch)
        for name in sums:
            sums[name] += found[name].item()
            counts[name] += part.batch.counts[name]
    means = [module(p.batch)["mlm"].item() / p.batch.counts["mlm"] for p in parts]
    report = step(module, parts)
    expected = {name: sums[name] / counts[name] for name in sums}
    assert report.losses == pytest.approx(expected, rel=1e-5)
    assert report.losses["mlm"] != pytest.approx(sum(means) / 3, rel=1e-5)
    assert report.loss == pytest.approx(sum(expected.values()), rel=1e-5)


def test_the_tokens_of_a_step_are_those_that_are_not_padding(corpus, stream, objective):
    parts = pieces(stream, objective, [3, 5])
    real = sum(int((part.batch.owner >= 0).sum()) for part in parts)
    assert step(trainee(corpus, objective), parts).tokens == real


@pytest.mark.parametrize("clip", [0.01, 1.0, 1e6])
def test_a_gradient_is_followed_no_farther_than_the_clip(corpus, stream, objective, clip):
    module = trainee(corpus, objective)
    before = weights(module)
    plain = torch.optim.SGD(module.parameters(), lr=1.0)  # moves by the gradient itself
    report = step(module, pieces(stream, objective, [4, 4]), plain, clip=clip)
    moved = sum(((weights(module)[n] - before[n]) ** 2).sum().item() for n in before) ** 0.5
    assert report.norm > 1.0
    assert moved == pytest.approx(min(report.norm, clip), rel=1e-3)


def test_a_step_forgets_the_gradient_of_the_one_before(corpus, stream, objective):
    module = trainee(corpus, objective)
    parts = pieces(stream, objective, [8])
    still = torch.optim.SGD(module.parameters(), lr=0.0)
    assert step(module, parts, still).norm == step(module, parts, still).norm


ZERO = torch.tensor([0])


class Poisoned:
    """An objective that goes wrong when told to."""

    def __init__(self, inner, how: str) -> None:
        self.inner, self.how, self.armed = inner, how, False

    def __call__(self, network, batch):
        sums = self.inner(network, batch)
        if self.armed and self.how == "nan":
            sums["mlm"] = sums["mlm"] * float("nan")
        if self.armed and self.how == "infinity":
            sums["mlm"] = sums["mlm"] * float("inf")
        if self.armed and self.how == "gradient":  # a finite loss, an infinite gradient
            sums["pair"] = sums["pair"] + (0.0 * network.pooler.dense.weight.sum()).sqrt()
        if self.armed and self.how == "one weight":
            network.encoder.norm.weight.register_hook(lambda g: g.index_fill(0, ZERO, torch.nan))
        return sums


@pytest.mark.parametrize("how", ["nan", "infinity", "gradient", "one weight"])
def test_what_is_not_finite_leaves_weights_and_optimizer_bit_identical(
    corpus, stream, objective, how
):
    poisoned = Poisoned(objective, how)
    module = trainee(corpus, poisoned)
    optimizer = make_optimizer(module, recipe().optimizer)
    assert step(module, pieces(stream, objective, [4, 4]), optimizer).taken
    before = weights(module), copy.deepcopy(read_moments(module, optimizer))
    poisoned.armed = True
    report = step(module, pieces(stream, objective, [4, 4], first=8), optimizer)
    assert not report.taken
    after = weights(module), read_moments(module, optimizer)
    for old, new in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) for name in old)


def test_a_step_after_one_that_was_left_out_is_as_if_it_had_not_been(corpus, stream, objective):
    poisoned = Poisoned(objective, "nan")
    hurt, well = trainee(corpus, poisoned), trainee(corpus, objective)
    optimizer = make_optimizer(hurt, recipe().optimizer)
    poisoned.armed = True
    step(hurt, pieces(stream, objective, [8]), optimizer)
    poisoned.armed = False
    step(hurt, pieces(stream, objective, [8], first=8), optimizer)
    step(well, pieces(stream, objective, [8], first=8))
    assert all(torch.equal(weights(hurt)[n], tensor) for n, tensor in weights(well).items())


def test_a_weight_that_is_not_finite_takes_no_step(corpus, stream, objective):
    module = trainee(corpus, objective)
    module.network.encoder.tokens.weight.data[7, 3] = float("nan")
    assert not step(module, pieces(stream, objective, [8])).taken


def with_dropout(corpus, objective):
    return trainee(corpus, objective, dropout=0.3, attention_dropout=0.3).train()


def test_dropout_is_a_function_of_the_seed_of_the_batch(corpus, stream, objective):
    (part,) = pieces(stream, objective, [8])

    def loss(seed, before):
        module = with_dropout(corpus, objective)
        torch.manual_seed(before)  # whatever was drawn earlier
        report = step(module, [Piece(part.batch, seed)])
        return report.losses, report.norm

    assert loss(5, before=1) == loss(5, before=2)
    assert loss(5, before=1) != loss(6, before=1)


def test_dropout_of_a_batch_does_not_depend_on_its_mates(corpus, stream, objective):
    """So it is the same whichever process computes it, and after whatever."""
    first, second = pieces(stream, objective, [4, 4])

    def sums(parts):
        report = step(with_dropout(corpus, objective), parts)
        counts = {n: sum(p.batch.counts[n] for p in parts) for n in report.losses}
        return {n: loss * counts[n] for n, loss in report.losses.items()}

    apart = [sums([first]), sums([second])]
    for parts in ([first, second], [second, first]):
        both = sums(parts)
        assert both == pytest.approx({n: apart[0][n] + apart[1][n] for n in both}, rel=1e-6)


def test_a_step_without_one_pair_to_answer_is_taken(corpus, stream, objective):
    unlabelled = stream.batch([Cursor(0, row) for row in range(4)])
    unlabelled.labels["pair"].fill_(UNSAID)
    batch = objective.prepare(unlabelled, 1)
    assert batch.counts["pair"] == 0
    report = step(trainee(corpus, objective), [Piece(batch, 0)])
    assert report.taken
    assert report.losses["pair"] == 0.0
    assert report.losses["mlm"] > 0.0


def test_half_precision_finds_nearly_the_same_and_keeps_weights_whole(corpus, stream, objective):
    exact, half = trainee(corpus, objective), trainee(corpus, objective)
    parts = pieces(stream, objective, [8])
    one, other = step(exact, parts), step(half, parts, precision="bf16")
    assert other.losses == pytest.approx(one.losses, rel=2e-2)
    assert other.losses != one.losses
    assert {p.dtype for p in half.parameters()} == {torch.float32}


@pytest.mark.parametrize("batches", [1, 2])
def test_a_step_that_is_given_up_changes_nothing(corpus, stream, objective, batches):
    module = trainee(corpus, objective)
    optimizer = make_optimizer(module, recipe().optimizer)
    before, asked = weights(module), iter([False] * (batches - 1) + [True])
    given_up = step(
        module, pieces(stream, objective, [2, 2, 2]), optimizer, give_up=lambda: next(asked)
    )
    assert given_up is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(module).items())
    assert not read_moments(module.network, optimizer)
    assert next(asked, None) is None  # asked before the second batch, and before the third


def test_a_step_of_one_batch_is_not_given_up(corpus, stream, objective):
    assert step(trainee(corpus, objective), pieces(stream, objective, [4]), give_up=lambda: True)
