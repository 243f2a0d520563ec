"""One step: many batches as if they were one, and nothing that is not finite reaches a weight."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

import pytest
import torch

from tests.stepping import take_step
from tests.train.conftest import LENGTH, recipe
from unmask.data.corpus.examples import NO_PAIR
from unmask.data.corpus.stream import Cursor, Stream
from unmask.jobs.inputs.corpus import objective_for
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.objectives.base import Objective
from unmask.system.distributed import Processes
from unmask.train.optim.optimizers import make_optimizer, read_moments
from unmask.train.steps.base import MicroBatch, TrainingModule

ROWS = 8


@pytest.fixture(scope="module")
def objective(corpus):
    return objective_for(recipe(), corpus.tokenizer.vocabulary)


@pytest.fixture(scope="module")
def stream(corpus):
    documents = torch.arange(len(corpus.documents) - 1).numpy()
    return Stream(corpus, documents, recipe().data, 0, LENGTH)


def trainee(corpus, objective, **changes) -> TrainingModule:
    """The same start every time; without dropout unless asked."""
    made = recipe(model={"dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.1, **changes})
    config = made.model.config(len(corpus.tokenizer.vocabulary))
    torch.manual_seed(0)
    network = Network(Shape.of(config, objective.heads(Shape.of(config))))
    return TrainingModule(network, objective)


def pieces(stream, objective, sizes, first=0):
    """So many rows each, from the same place of the corpus on."""
    found, at = [], first
    for number, size in enumerate(sizes):
        rows = [Cursor(0, at + i) for i in range(size)]
        found.append(MicroBatch(objective.prepare(stream.batch(rows), 1, 0.0), seed=number))
        at += size
    return found


def step(module, parts, optimizer=None, **how):
    optimizer = optimizer or make_optimizer(module, recipe().optimizer)
    return take_step(module, parts, optimizer, **{"clip": 1.0, **how})


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
    result = step(module, parts)
    expected = {name: sums[name] / counts[name] for name in sums}
    assert result.losses == pytest.approx(expected, rel=1e-5)
    assert result.losses["mlm"] != pytest.approx(sum(means) / 3, rel=1e-5)
    assert result.loss == pytest.approx(sum(expected.values()), rel=1e-5)


def test_the_tokens_of_a_step_are_those_that_are_not_padding(corpus, stream, objective):
    parts = pieces(stream, objective, [3, 5])
    real = sum(int((part.batch.owner >= 0).sum()) for part in parts)
    assert step(trainee(corpus, objective), parts).tokens == real


@pytest.mark.parametrize("clip", [0.01, 1.0, 1e6])
def test_a_gradient_is_followed_no_farther_than_the_clip(corpus, stream, objective, clip):
    module = trainee(corpus, objective)
    before = weights(module)
    plain = torch.optim.SGD(module.parameters(), lr=1.0)  # moves by the gradient itself
    result = step(module, pieces(stream, objective, [4, 4]), plain, clip=clip)
    moved = sum(((weights(module)[n] - before[n]) ** 2).sum().item() for n in before) ** 0.5
    assert result.norm > 1.0
    assert moved == pytest.approx(min(result.norm, clip), rel=1e-3)


def test_a_step_forgets_the_gradient_of_the_one_before(corpus, stream, objective):
    module = trainee(corpus, objective)
    parts = pieces(stream, objective, [8])
    still = torch.optim.SGD(module.parameters(), lr=0.0)
    assert step(module, parts, still).norm == step(module, parts, still).norm


ZERO = torch.tensor([0])


class Poisoned(Objective):
    """An objective that goes wrong when told to."""

    def __init__(self, inner, how: str) -> None:
        super().__init__(inner.config)
        self.inner, self.how, self.armed = inner, how, False

    def describe(self):
        return self.inner.describe()

    def heads(self, shape):
        return self.inner.heads(shape)

    def forward(self, network, batch, companions, each=False):
        sums = self.inner(network, batch, companions)
        if self.armed and self.how == "nan":
            sums["mlm"] = sums["mlm"] * float("nan")
        if self.armed and self.how == "infinity":
            sums["mlm"] = sums["mlm"] * float("inf")
        if self.armed and self.how == "gradient":  # a finite loss, an infinite gradient
            sums["pair"] = sums["pair"] + (0.0 * network.heads["pooler"].dense.weight.sum()).sqrt()
        if self.armed and self.how == "one weight":
            network.encoder.embeddings.norm.weight.register_hook(
                lambda g: g.index_fill(0, ZERO, torch.nan)
            )
        return sums


@pytest.mark.parametrize("how", ["nan", "infinity", "gradient", "one weight"])
def test_what_is_not_finite_leaves_weights_and_optimizer_bit_identical(
    corpus, stream, objective, how
):
    poisoned = Poisoned(objective, how)
    module = trainee(corpus, poisoned)
    optimizer = make_optimizer(module, recipe().optimizer)
    assert step(module, pieces(stream, objective, [4, 4]), optimizer).taken
    before = weights(module), copy.deepcopy(read_moments({"": module}, optimizer))
    poisoned.armed = True
    result = step(module, pieces(stream, objective, [4, 4], first=8), optimizer)
    assert not result.taken
    after = weights(module), read_moments({"": module}, optimizer)
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
    module.network.encoder.embeddings.tokens.weight.data[7, 3] = float("nan")
    assert not step(module, pieces(stream, objective, [8])).taken


def with_dropout(corpus, objective):
    return trainee(corpus, objective, dropout=0.3, attention_dropout=0.3).train()


def test_dropout_is_a_function_of_the_seed_of_the_batch(corpus, stream, objective):
    (part,) = pieces(stream, objective, [8])

    def loss(seed, before):
        module = with_dropout(corpus, objective)
        torch.manual_seed(before)  # whatever was drawn earlier
        result = step(module, [MicroBatch(part.batch, seed)])
        return result.losses, result.norm

    assert loss(5, before=1) == loss(5, before=2)
    assert loss(5, before=1) != loss(6, before=1)


def test_dropout_of_a_batch_does_not_depend_on_its_mates(corpus, stream, objective):
    """So it is the same whichever process computes it, and after whatever."""
    first, second = pieces(stream, objective, [4, 4])

    def sums(parts):
        result = step(with_dropout(corpus, objective), parts)
        counts = {n: sum(p.batch.counts[n] for p in parts) for n in result.losses}
        return {n: loss * counts[n] for n, loss in result.losses.items()}

    apart = [sums([first]), sums([second])]
    for parts in ([first, second], [second, first]):
        both = sums(parts)
        assert both == pytest.approx({n: apart[0][n] + apart[1][n] for n in both}, rel=1e-6)


def test_a_step_without_one_pair_to_answer_is_taken(corpus, stream, objective):
    unlabelled = stream.batch([Cursor(0, row) for row in range(4)])
    unlabelled.labels["pair"].fill_(NO_PAIR)
    batch = objective.prepare(unlabelled, 1, 0.0)
    assert batch.counts["pair"] == 0
    result = step(trainee(corpus, objective), [MicroBatch(batch, 0)])
    assert result.taken
    assert result.losses["pair"] == 0.0
    assert result.losses["mlm"] > 0.0


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
    assert not read_moments({"": module}, optimizer)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert next(asked, None) is None  # asked before the second batch, and before the third


def test_a_step_of_one_batch_is_not_given_up(corpus, stream, objective):
    assert step(trainee(corpus, objective), pieces(stream, objective, [4]), give_up=lambda: True)


@dataclass(frozen=True)
class Meeting:
    """Where simulated processes add up their numbers; who waits in vain for another fails."""

    barrier: Barrier
    brought: dict[int, list[float]] = field(default_factory=dict)

    def total(self, rank: int, values: list[float]) -> list[float]:
        self.brought[rank] = values
        self.barrier.wait()
        sums = [sum(each) for each in zip(*self.brought.values(), strict=True)]
        self.barrier.wait()
        return sums


@dataclass(frozen=True)
class Simulated(Processes):
    """One of several processes, each in a thread of this one."""

    meeting: Meeting = field(kw_only=True)

    def total(self, values):
        return self.meeting.total(self.rank, list(values))


def side_by_side(corpus, objective, dealt, wishes=()):
    """A step of several processes with these batches each.

    `wishes` are processes to which a stop request comes after their first poll. Returns what each
    process finds, how often it asked whether to give up, and its weights before and after.
    """
    meeting = Meeting(Barrier(len(dealt), timeout=20))
    rounds = max(map(len, dealt))

    def work(rank):
        processes, polls = Simulated(rank, len(dealt), meeting=meeting), []

        def give_up():  # as the loop asks
            polls.append(rank in wishes and len(polls) >= 1)
            return processes.total([float(polls[-1])])[0] > 0

        module = trainees[rank]
        before = weights(module)
        result = take_step(
            module,
            dealt[rank],
            make_optimizer(module, recipe().optimizer),
            processes,
            clip=1e6,
            rounds=rounds,
            give_up=give_up,
        )
        return result, len(polls), before, weights(module)

    trainees = [trainee(corpus, objective) for _ in dealt]
    with ThreadPoolExecutor(len(dealt)) as pool:
        return list(pool.map(work, range(len(dealt))))


@pytest.mark.parametrize("sizes", [[3, 3, 2], [2, 2, 2, 1, 1]])
def test_processes_with_unequal_numbers_of_batches_ask_equally_often(
    corpus, stream, objective, sizes
):
    parts = pieces(stream, objective, sizes)
    dealt = [parts[0::2], parts[1::2]]
    assert len(dealt[0]) == len(dealt[1]) + 1
    (first, polls, *_), (second, others, *_) = side_by_side(corpus, objective, dealt)
    assert polls == others == len(dealt[0]) - 1
    alone = step(trainee(corpus, objective), parts)
    for result in (first, second):
        assert result.taken
        assert result.losses == pytest.approx(alone.losses, rel=1e-5)
        assert result.tokens == alone.tokens


@pytest.mark.parametrize("wish", [0, 1])
def test_a_wish_to_one_process_gives_the_step_up_on_all_at_the_same_poll(
    corpus, stream, objective, wish
):
    parts = pieces(stream, objective, [1] * 7)
    found = side_by_side(corpus, objective, [parts[0::2], parts[1::2]], wishes=[wish])
    for result, polls, before, after in found:
        assert (result, polls) == (None, 2)
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_process_that_waits_for_the_others_makes_its_first_pass_with_them(
    corpus, stream, objective
):
    """DDP exchanges more than gradients in the first pass of a step; only the last one counts."""
    module = trainee(corpus, objective)
    (part,) = pieces(stream, objective, [4])
    passes, polls = [], []
    module.register_forward_hook(lambda *about: passes.append(len(polls)))

    def give_up():
        polls.append(False)
        return False

    result = step(module, [part], rounds=2, give_up=give_up)
    assert passes == [0, 1]
    assert result == step(trainee(corpus, objective), [part])
