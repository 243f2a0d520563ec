"""Several heads on one encoder: a step trains one of them, and the others only decay."""

import copy

import pytest
import torch

from tests.jobs.small import data, names, small_model
from unmask.jobs.labelled import windows_of
from unmask.model.factory import make_network
from unmask.tasks.base import batch_of
from unmask.tasks.engine import scores_of
from unmask.tasks.several import SeveralTasks, heads_of
from unmask.train.distributed import Processes
from unmask.train.ingredients import Tokens
from unmask.train.optim import make_optimizer, read_moments
from unmask.train.schedule import OptimizerSettings
from unmask.train.step import Piece, Trainee, take_step

RULES = OptimizerSettings(rate=1e-2, decay=0.1)
TURNS = ["number", "names", "names", "number", "names", "number"]


class AddingZeros(SeveralTasks):
    """The same with the usual trick: zero times the parameters of all heads is added to a loss."""

    def __call__(self, network, batch):
        (name,) = batch.counts
        own = self.networks[name].train(network.training)
        loss = self.tasks[name].loss(scores_of(own, batch), batch)
        for parameter in (*network.label_heads.parameters(), *network.pooler.parameters()):
            loss = loss + 0.0 * parameter.sum()
        return {name: loss}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tasks, a batch of each, and a network with their heads."""
    place = tmp_path_factory.mktemp("several")
    model, parts = small_model(place / "model"), {"number": data(), "names": names(place)}
    tasks = {name: part.task for name, part in parts.items()}
    batches = {}
    for name, part in parts.items():
        windows, _ = windows_of(part.task, part.train[:8], Tokens(model.tokenizer, 32))
        batches[name] = batch_of(
            part.task, windows, pad_id=model.tokenizer.vocabulary.pad, term=name
        )
    network = make_network(model.network.config, heads_of(tasks), 0, start=model.network)
    return tasks, batches, network.train()


def trained(made, turns, objective=SeveralTasks, spoil=None):
    """The weights and moments after steps of these tasks, and the last report."""
    tasks, batches, network = made
    network = copy.deepcopy(network)
    if spoil:
        with torch.no_grad():
            network.get_parameter(spoil)[0, 0] = torch.nan
    trainee = Trainee(network, objective(tasks, network))
    optimizer, report = make_optimizer(trainee, RULES), None
    for turn, name in enumerate(turns):
        piece = Piece(batches[name], turn)
        report = take_step(
            trainee, [piece], optimizer, Processes(), terms=list(tasks), clip=RULES.clip
        )
        assert report is not None
    return network.state_dict(), read_moments(network, optimizer), report


@pytest.mark.parametrize(
    ("active", "idle"),
    [
        ("number", "label_heads.names.dense.weight"),
        ("names", "label_heads.number.dense.weight"),
        ("names", "pooler.dense.weight"),
    ],
)
def test_a_nan_in_an_idle_head_stays_there(made, active, idle):
    expected, _, sound = trained(made, [active])
    found, _, report = trained(made, [active], spoil=idle)
    assert report.taken
    assert (report.losses, report.norm) == (sound.losses, sound.norm)
    for name, tensor in found.items():
        if name == idle:
            assert torch.isnan(tensor[0, 0])
            tensor[0, 0] = expected[name][0, 0]
        assert torch.equal(tensor, expected[name]), name


def test_a_nan_in_the_active_head_is_noticed(made):
    before = made[2].state_dict()
    found, _, report = trained(made, ["names"], spoil="label_heads.names.dense.weight")
    assert not report.taken
    assert all(torch.equal(found[name], before[name]) for name in before if "names" not in name)


def test_an_idle_head_decays_by_hand(made):
    before = made[2].state_dict()
    after, moments, _ = trained(made, ["number"])
    name = "label_heads.names.dense"
    shrunk = before[f"{name}.weight"] * (1 - RULES.rate * RULES.decay)
    torch.testing.assert_close(after[f"{name}.weight"], shrunk, atol=0, rtol=1e-6)
    assert not torch.equal(after[f"{name}.weight"], before[f"{name}.weight"])
    assert torch.equal(after[f"{name}.bias"], before[f"{name}.bias"])
    assert not moments[f"exp_avg/{name}.weight"].any()
    assert moments["exp_avg/label_heads.number.dense.weight"].any()


def test_steps_in_turn_are_those_of_adding_zero_times_every_head(made):
    """Idle heads have a gradient of zero, not none: their moments fade, their weights decay."""
    ours, our_moments, _ = trained(made, TURNS)
    theirs, their_moments, _ = trained(made, TURNS, AddingZeros)
    assert our_moments.keys() == their_moments.keys()
    for found, expected in ((ours, theirs), (our_moments, their_moments)):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
