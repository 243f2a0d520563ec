"""A step whose loss couples all its texts: two passes, and the gradients of one over everything."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Barrier
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.conftest import tiny_network
from tests.objectives.conftest import around, batch_of
from tests.stepping import take_step
from unmask.objectives.base import Objective, Term
from unmask.system.distributed import Processes
from unmask.system.errors import SettingsError
from unmask.system.settings import Settings
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepSite, TrainingModule
from unmask.train.steps.coupled import Coupled


class Pairs(Objective):
    """The first text of each record must find the second one among all, and the other way round."""

    coupled = True
    couples: ClassVar[Sequence[str]] = ("side",)

    def __init__(self, *, sharpness: float | None = 2.0, weight: float = 1.0) -> None:
        super().__init__(Settings())
        self.sharpness, self.weight = 1.0, weight
        if sharpness is not None:
            self.sharpness = nn.Parameter(torch.tensor([sharpness]))
        self.seen: list = []  # vectors of each pass, and what was known when they were coupled

    def describe(self):
        return [Term("pairs", "pairs")]

    @property
    def weights(self):
        return {} if self.weight == 1.0 else {"pairs": self.weight}

    def encode(self, network, batch):
        vectors = network.encode(batch, places=batch.begins)
        self.seen.append(vectors.detach().clone())
        return vectors

    def couple(self, vectors, batch):
        self.seen.append(batch)
        side = batch.labels["side"]
        first, second = vectors[side == 0], vectors[side == 1]
        assert torch.equal(batch.record[side == 0], batch.record[side == 1])
        scores = self.sharpness * first @ second.T
        right = torch.arange(len(scores))
        both = [F.cross_entropy(own, right, reduction="sum") for own in (scores, scores.T)]
        return {"pairs": sum(both) / 2}


TEXTS = [around([7 + i, 8 + i], [9 + i] * (1 + i % 4)) for i in range(12)]


def pieces(sizes, texts=TEXTS):
    """Batches with these numbers of pairs, each a record; in some the second text is first."""
    found, at = [], 0
    for number, size in enumerate(sizes):
        chosen = texts[2 * at : 2 * (at + size)]
        sides = [place % 2 if (at + place // 2) % 2 else 1 - place % 2 for place in range(2 * size)]
        batch = replace(
            batch_of(chosen, row_length=24),
            labels={"side": torch.tensor(sides)},
            record=torch.tensor([place // 2 for place in range(2 * size)]),
            counts={"pairs": size},
        )
        found.append(MicroBatch(batch, seed=number))
        at += size
    return found


def module_of(objective, dropout=0.0) -> TrainingModule:
    network = tiny_network(dropout=dropout, attention_dropout=dropout)
    return TrainingModule(network, objective).train()


def gradients(module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def stepped(objective, parts, *, dropout=0.0, **site):
    """What a step finds, and the gradients that it leaves."""
    module = module_of(objective, dropout)
    result = step_for(objective)(module, parts, StepSite(Processes(), **site))
    return result, gradients(module)


def in_one_pass(objective):
    """The same with all texts in one batch, and autograd alone."""
    (piece,) = pieces([6])
    module = module_of(objective)
    sums = module(piece.batch)
    (objective.weights.get("pairs", 1.0) * sums["pairs"].sum() / 6).backward()
    return float(sums["pairs"].detach()) / 6, gradients(module)


class Table(Pairs):
    """Pairs whose vectors are rows of a table."""

    def __init__(self, rows) -> None:
        super().__init__(sharpness=1.5)
        self.rows = nn.Parameter(torch.tensor(rows))

    def encode(self, network, batch):
        return self.rows[batch.tokens[batch.row, batch.start + 1] - 7]


@pytest.mark.parametrize("sizes", [[2], [1, 1]])
def test_the_gradient_of_a_softmax_among_two_pairs_by_hand(sizes):
    """First texts a, b and second texts c, d; the scores are 1.5 times their products."""
    rows = [[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0]]  # c, a, b, d
    objective = Table(rows)
    result, found = stepped(objective, pieces(sizes, [around([7 + i]) for i in range(4)]))
    (c, a, b, d) = ([1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0])
    scores = [[1.5, 0.0], [0.0, 3.0]]  # 1.5 * [[ac, ad], [bc, bd]]
    e = [[math.exp(s) for s in row] for row in scores]
    across = [[e[i][j] / sum(e[i]) for j in (0, 1)] for i in (0, 1)]
    down = [[e[i][j] / (e[0][j] + e[1][j]) for j in (0, 1)] for i in (0, 1)]
    logs = [math.log(shares[i][i]) for shares in (across, down) for i in (0, 1)]
    assert result.losses == {"pairs": pytest.approx(-sum(logs) / 2 / 2)}
    # For each score half the mean of (share - truth) of both softmaxes.
    slope = [[(across[i][j] + down[i][j] - 2 * (i == j)) / 4 for j in (0, 1)] for i in (0, 1)]

    def mixed(one, other, weights):
        return [1.5 * (weights[0] * x + weights[1] * y) for x, y in zip(one, other, strict=True)]

    expected = {
        "a": mixed(c, d, slope[0]),
        "b": mixed(c, d, slope[1]),
        "c": mixed(a, b, [slope[0][0], slope[1][0]]),
        "d": mixed(a, b, [slope[0][1], slope[1][1]]),
    }
    table = found["objective.rows"].tolist()
    for place, name in enumerate("cabd"):
        assert table[place] == pytest.approx(expected[name], abs=1e-6), name
    sharpness = sum(slope[i][j] * scores[i][j] / 1.5 for i in (0, 1) for j in (0, 1))
    assert found["objective.sharpness"].item() == pytest.approx(sharpness, abs=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_both_passes_give_the_same_bits_with_dropout(precision):
    objective = Pairs()
    stepped(objective, pieces([2, 1, 3]), dropout=0.1, precision=precision)
    *first, coupled, a, b, c = objective.seen
    assert len(first) == 3
    for one, other in zip(first, (a, b, c), strict=True):
        assert torch.equal(one, other)
    again = Pairs()
    shifted = [replace(piece, seed=piece.seed + 1) for piece in pieces([2, 1, 3])]
    stepped(again, shifted, dropout=0.1, precision=precision)
    assert not torch.equal(again.seen[0], first[0]), "dropout is on, and goes by the seed"


@pytest.mark.parametrize("sharpness", [2.0, None])
@pytest.mark.parametrize("sizes", [[6], [3, 3], [2, 2, 2], [1, 4, 1], [1] * 6])
def test_the_gradients_are_those_of_one_pass_over_everything(sizes, sharpness):
    loss, expected = in_one_pass(Pairs(sharpness=sharpness))
    result, found = stepped(Pairs(sharpness=sharpness), pieces(sizes))
    assert result.losses == {"pairs": pytest.approx(loss, rel=1e-5)}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5, msg=name)
    if sharpness is not None:
        assert abs(found["objective.sharpness"].item()) > 1e-3
    whole = math.sqrt(sum(float(g.square().sum()) for g in found.values()))
    assert result.norm == pytest.approx(whole, rel=1e-5)
    assert result.tokens == sum(len(text.ids) for text in TEXTS)


def test_what_is_coupled_is_every_text_in_order_with_its_label_and_record():
    objective, parts = Pairs(), pieces([2, 3, 1])
    stepped(objective, parts)
    known = objective.seen[3]
    sides = [side for part in parts for side in part.batch.labels["side"].tolist()]
    assert known.labels["side"].tolist() == sides
    assert known.record.tolist() == [number // 2 for number in range(12)]
    assert known.counts == {"pairs": 6}
    assert not known.inputs


def test_texts_without_a_record_are_one_each():
    objective = Pairs()
    parts = [replace(p, batch=replace(p.batch, record=None)) for p in pieces([2, 1])]
    objective.couple = lambda vectors, batch: (
        objective.seen.append(batch) or {"pairs": vectors.sum()}
    )
    stepped(objective, parts)
    assert objective.seen[2].record.tolist() == list(range(6))


def test_the_weight_of_a_term_counts_in_the_gradient_and_not_in_the_loss():
    plain, whole = stepped(Pairs(), pieces([4, 2]))
    half, found = stepped(Pairs(weight=0.5), pieces([4, 2]))
    assert half.losses == pytest.approx(plain.losses)
    assert half.loss == pytest.approx(0.5 * plain.loss)
    for name, gradient in whole.items():
        torch.testing.assert_close(found[name], 0.5 * gradient, atol=1e-7, rtol=1e-5)


def test_the_gradient_is_clipped_as_a_whole():
    result, found = stepped(Pairs(), pieces([3, 3]), clip=0.01)
    norm = math.sqrt(sum(float(g.square().sum()) for g in found.values()))
    assert result.norm > 0.1
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_a_step_moves_the_weights_and_the_objectives_own():
    module = module_of(Pairs())
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    assert take_step(module, pieces([3, 3]), plain).taken
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter, before[name] - 0.1 * parameter.grad)
    assert module.objective.sharpness.item() != before["objective.sharpness"].item()


def test_what_is_not_finite_is_not_taken():
    module = module_of(Pairs(sharpness=float("nan")))
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    before = {name: p.detach().clone() for name, p in module.network.named_parameters()}
    assert not take_step(module, pieces([3, 3]), plain).taken
    assert all(torch.equal(p, before[name]) for name, p in module.network.named_parameters())


@pytest.mark.parametrize("polls", [1, 2, 3, 4])
def test_a_step_that_is_given_up_leaves_no_gradient(polls):
    """Three batches: it is asked twice in each pass."""
    asked, parts = iter([False] * (polls - 1) + [True]), pieces([2, 2, 2])
    module = module_of(Pairs())
    step = step_for(module.objective)
    assert step(module, parts, StepSite(Processes())).taken
    assert gradients(module)
    site = StepSite(Processes(), give_up=lambda: next(asked))
    assert step(module, parts, site) is None
    assert gradients(module) == {}
    assert next(asked, None) is None


def test_a_step_of_one_batch_is_not_given_up():
    result, _ = stepped(Pairs(), pieces([6]), give_up=lambda: True)
    assert result is not None


def test_parameters_of_its_own_cannot_be_shared_among_processes():
    with pytest.raises(SettingsError, match=r"--shard: .* parameters of its own \(sharpness\)"):
        step_for(Pairs(), shard=True)
    assert isinstance(step_for(Pairs(sharpness=None), shard=True), Coupled)
    still = Pairs()
    still.sharpness.requires_grad_(False)
    assert isinstance(step_for(still, shard=True), Coupled)


@dataclass(frozen=True)
class Meeting:
    """Where simulated processes exchange what they have; who waits in vain for another fails."""

    barrier: Barrier
    brought: dict[int, bytes | list[float]] = field(default_factory=dict)

    def every(self, rank, own):
        self.brought[rank] = own
        self.barrier.wait()
        found = [self.brought[other] for other in sorted(self.brought)]
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class Simulated(Processes):
    """One of several processes, each in a thread of this one."""

    meeting: Meeting = field(kw_only=True)

    def total(self, values):
        brought = self.meeting.every(self.rank, list(values))
        return [sum(each) for each in zip(*brought, strict=True)]

    def gather(self, payload):
        return self.meeting.every(self.rank, payload)


def side_by_side(dealt, wish=None):
    """A step of several processes; a stop request may come to one after its first poll.

    Returns what each finds, its gradients, and how often it asked.
    """
    meeting = Meeting(Barrier(len(dealt), timeout=20))
    modules = [module_of(Pairs()) for _ in dealt]

    def work(rank):
        processes, polls = Simulated(rank, len(dealt), meeting=meeting), []

        def give_up():
            polls.append(rank == wish and len(polls) >= 1)
            return processes.total([float(polls[-1])])[0] > 0

        site = StepSite(processes, rounds=max(map(len, dealt)), give_up=give_up)
        result = Coupled(modules[rank].objective)(modules[rank], dealt[rank], site)
        return result, gradients(modules[rank]), len(polls)

    with ThreadPoolExecutor(len(dealt)) as pool:
        return list(pool.map(work, range(len(dealt))))


@pytest.mark.parametrize("sizes", [[3, 3], [2, 2, 2], [1, 2, 1, 1, 1], [1, 4, 1]])
def test_processes_that_average_their_gradients_have_those_of_one_pass(sizes):
    loss, expected = in_one_pass(Pairs())
    parts = pieces(sizes)
    found = side_by_side([parts[0::2], parts[1::2]])
    for result, _, polls in found:
        assert result.losses == {"pairs": pytest.approx(loss, rel=1e-5)}
        assert result.tokens == sum(len(text.ids) for text in TEXTS)
        assert polls == 2 * (len(parts[0::2]) - 1)
    for name, gradient in expected.items():
        mean = sum(own[name] for _, own, _ in found) / len(found)
        torch.testing.assert_close(mean, gradient, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("wish", [0, 1])
def test_a_wish_to_one_process_gives_the_step_up_on_all_at_the_same_poll(wish):
    parts = pieces([1, 2, 1, 1, 1])
    found = side_by_side([parts[0::2], parts[1::2]], wish=wish)
    assert [(result, own, polls) for result, own, polls in found] == [(None, {}, 2)] * 2


def test_a_batch_that_is_evaluated_alone_is_coupled_alone():
    objective, (piece,) = Pairs(), pieces([6])
    module = module_of(objective).eval()
    with torch.no_grad():
        found = module(piece.batch)["pairs"]
        vectors = objective.encode(module.network, piece.batch)
        torch.testing.assert_close(found, objective.couple(vectors, piece.batch)["pairs"])
