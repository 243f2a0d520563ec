"""A summed step by hand: what its terms are divided by, and how much each of them counts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.conftest import tiny_network
from tests.objectives.conftest import around, batch_of
from tests.stepping import take_step
from unmask.model.shape import VectorConfig
from unmask.objectives.base import Objective, Term
from unmask.system.distributed import Processes
from unmask.system.settings import Settings
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepSite, TrainingModule, unreached
from unmask.train.steps.coupled import Coupled
from unmask.train.steps.summed import Summed

START = 3.0  # of the parameter


class Two(Objective):
    """Each text costs the square of a parameter, and its values times the parameter."""

    def __init__(self, **weights):
        super().__init__(Settings())
        self.own = weights
        self.scale = nn.Parameter(torch.tensor([START]))

    def describe(self):
        return [Term("square", "texts"), Term("line", "values")]

    @property
    def weights(self):
        return self.own

    def forward(self, network, batch, companions, each=False):
        sums = {"square": (self.scale**2).sum() * len(batch.row)}
        if "values" in batch.labels:
            sums["line"] = (self.scale * batch.labels["values"]).sum()
        return sums


def piece(texts, values=None):
    """Some texts, and as many values as wished."""
    batch = replace(batch_of([around([7])] * texts), counts={"square": texts})
    if values is not None:
        batch = batch.with_labels(len(values), "line", values=torch.tensor(values))
    return MicroBatch(batch, 0)


PIECES = [piece(1, [1.0]), piece(3, [2.0, 4.0, 1.0])]  # the mean of all values is 2


def found_of(objective, parts, **site):
    """What a step finds, and the gradient that it leaves."""
    module = TrainingModule(tiny_network(), objective)
    result = step_for(objective)(module, parts, StepSite(Processes(), **site))
    return result, None if objective.scale.grad is None else objective.scale.grad.item()


@pytest.mark.parametrize("weights", [{}, {"line": 0.25}, {"square": 3.0, "line": 0.5}, {"line": 0}])
def test_the_gradient_is_of_the_weighted_means_and_the_losses_are_of_plain_ones(weights):
    result, gradient = found_of(Two(**weights), PIECES)
    square, line = weights.get("square", 1.0), weights.get("line", 1.0)
    assert result.losses == pytest.approx({"square": START**2, "line": 2.0 * START})
    assert gradient == pytest.approx(square * 2 * START + line * 2.0)
    assert result.norm == pytest.approx(abs(gradient))
    assert result.loss == pytest.approx(square * START**2 + line * 2.0 * START)
    assert result.weights == weights


@pytest.mark.parametrize("weights", [{}, {"line": 0.25}])
def test_it_does_not_matter_how_values_are_spread_over_batches(weights):
    together, gradient = found_of(Two(**weights), [piece(4, [1.0, 2.0, 4.0, 1.0])])
    apart, other = found_of(Two(**weights), PIECES)
    assert together.losses == pytest.approx(apart.losses)
    assert gradient == pytest.approx(other)
    assert together.loss == pytest.approx(apart.loss)


def test_a_term_that_only_some_batches_have_is_the_mean_of_those():
    result, gradient = found_of(Two(line=0.5), [piece(2), piece(2, [4.0])])
    assert result.losses == pytest.approx({"square": START**2, "line": 4.0 * START})
    assert gradient == pytest.approx(2 * START + 0.5 * 4.0)


def test_a_term_that_no_batch_has_is_not_reported():
    result, gradient = found_of(Two(line=0.5), [piece(2), piece(1)])
    assert result.losses == pytest.approx({"square": START**2})
    assert result.loss == pytest.approx(START**2)
    assert gradient == pytest.approx(2 * START)


def test_a_term_without_an_answer_costs_nothing_and_divides_by_nothing():
    result, gradient = found_of(Two(), [piece(2, [])])
    assert result.losses == pytest.approx({"square": START**2, "line": 0.0})
    assert gradient == pytest.approx(2 * START)


def test_the_weighted_gradient_is_what_is_clipped():
    result, gradient = found_of(Two(square=0.5, line=0.5), PIECES, clip=1.0)
    assert result.norm == pytest.approx(0.5 * (2 * START + 2.0))
    assert gradient == pytest.approx(1.0, rel=1e-4)


def test_the_optimizer_moves_the_parameters_of_the_objective():
    objective = Two(line=0.25)
    module = TrainingModule(tiny_network(), objective)
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    assert take_step(module, PIECES, plain).taken
    assert objective.scale.item() == pytest.approx(START - 0.1 * (2 * START + 0.25 * 2.0))


def test_a_loss_that_is_not_finite_is_not_taken_whatever_its_weight():
    objective = Two(line=0)
    module = TrainingModule(tiny_network(), objective)
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    result = take_step(module, [piece(1, [float("inf")])], plain)
    assert not result.taken
    assert objective.scale.item() == START


def test_a_step_that_is_given_up_leaves_no_gradient():
    result, gradient = found_of(Two(), PIECES, give_up=lambda: True)
    assert (result, gradient) == (None, None)


class Turns(Two):
    """Each batch uses one of two heads; the other one is not reached."""

    def forward(self, network, batch, companions, each=False):
        name = "odd" if len(batch.row) % 2 else "even"
        states = network.states_for(name, batch, places=batch.begins)
        return {"square": network.heads[name](states).square().sum()}


def test_heads_and_own_parameters_that_a_batch_does_not_reach_have_a_gradient_of_zero():
    network = tiny_network({name: VectorConfig(width=3) for name in ("odd", "even")})
    network.heads["even"].dense.bias.requires_grad_(False)
    module = TrainingModule(network, Turns())
    step = step_for(module.objective)
    assert step(module, [piece(3)], StepSite(Processes())).taken
    assert network.heads["odd"].dense.weight.grad.any()
    assert network.heads["even"].dense.weight.grad.tolist() == [[0.0] * 16] * 3
    assert network.heads["even"].dense.bias.grad is None, "what is frozen stays without one"
    assert module.objective.scale.grad.tolist() == [0.0]
    assert step(module, [piece(3), piece(2)], StepSite(Processes())).taken
    assert network.heads["even"].dense.weight.grad.any()


def test_what_no_loss_depends_on_by_hand():
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    losses = [(a * 2).sum(), (a + b.detach()).sum()]
    assert [own is b or own is c for own in unreached(losses, [a, b, c])] == [True, True]
    assert unreached(losses, [a, torch.ones(2)]) == []


def test_the_step_is_the_one_that_the_objective_needs():
    class Pulling(Two):
        coupled = True

    assert isinstance(step_for(Two()), Summed)
    assert isinstance(step_for(Pulling()), Coupled)
