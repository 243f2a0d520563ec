"""Several heads on one encoder: a step trains one of them, and the others only decay."""

import copy
import hashlib

import pytest
import torch

from tests.jobs.small import data, names, small_model
from tests.stepping import take_step
from unmask.model.factory import make_network
from unmask.model.shape import Shape
from unmask.system.errors import SettingsError
from unmask.tasks.forward import scores_of
from unmask.tasks.labels import SupervisedObjective, heads_of, label_tasks
from unmask.tasks.translate import Translate, TranslateSettings
from unmask.text.tokens import Tokenizers
from unmask.train.optim.optimizers import make_optimizer, read_moments
from unmask.train.optim.schedules import OptimizerSettings
from unmask.train.steps.base import MicroBatch, TrainingModule

RULES = OptimizerSettings(learning_rate=1e-2, weight_decay=0.1)
TURNS = ["number", "names", "names", "number", "names", "number"]


class AddingZeros(SupervisedObjective):
    """The same with the usual trick: zero times the parameters of all heads is added to a loss."""

    def forward(self, network, batch, companions, each=False):
        (name,) = batch.counts
        loss = self.tasks[name].loss(scores_of(network, batch, self.head_of[name]), batch)
        for parameter in network.heads.parameters():
            loss = loss + 0.0 * parameter.sum()
        return {name: loss}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tasks, a batch of each, and a network with their heads."""
    place = tmp_path_factory.mktemp("several")
    model, parts = small_model(place / "model"), {"number": data(), "names": names(place)}
    tasks = label_tasks({name: part.task for name, part in parts.items()})
    batches, tokens = {}, Tokenizers(model.tokenizer, 32)
    for name, part in parts.items():
        found = part.task.windows(part.train[:8], tokens, learn=True)
        windows = [window.compact() for _, some in found for window in some]
        batches[name] = part.task.batch(windows, tokens, term=name)
    network = make_network(Shape.of(model.network.config, heads_of(tasks)), 0, start=model.network)
    return tasks, batches, network.train()


def trained(made, turns, objective=SupervisedObjective, spoil=None):
    """The weights and moments after steps of these tasks, and the last result."""
    tasks, batches, network = made
    network = copy.deepcopy(network)
    if spoil:
        with torch.no_grad():
            network.get_parameter(spoil)[0, 0] = torch.nan
    module = TrainingModule(network, objective(tasks, {name: name for name in tasks}))
    optimizer, result = make_optimizer(module, RULES), None
    for turn, name in enumerate(turns):
        result = take_step(
            module, [MicroBatch(batches[name], turn)], optimizer, clip=RULES.max_grad_norm
        )
        assert result is not None
    return network.state_dict(), read_moments({"": network}, optimizer), result


@pytest.mark.parametrize(
    ("active", "idle"),
    [
        ("number", "heads.names.dense.weight"),
        ("names", "heads.number.dense.weight"),
        ("names", "heads.pooler.dense.weight"),
    ],
)
def test_a_nan_in_an_idle_head_stays_there(made, active, idle):
    expected, _, sound = trained(made, [active])
    found, _, result = trained(made, [active], spoil=idle)
    assert result.taken
    assert (result.losses, result.norm) == (sound.losses, sound.norm)
    for name, tensor in found.items():
        if name == idle:
            assert torch.isnan(tensor[0, 0])
            tensor[0, 0] = expected[name][0, 0]
        assert torch.equal(tensor, expected[name]), name


def test_a_nan_in_the_active_head_is_noticed(made):
    before = made[2].state_dict()
    found, _, result = trained(made, ["names"], spoil="heads.names.dense.weight")
    assert not result.taken
    assert all(torch.equal(found[name], before[name]) for name in before if "names" not in name)


def test_a_head_begins_with_values_that_are_drawn_by_its_name(made):
    """The name that it had in version 0.1: a seed gives the same network as then."""
    network = made[2]
    std = network.config.init_std
    for name in ("number", "names"):
        key = hashlib.sha256(f"0/label_heads/{name}.dense.weight".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") % 2**63)
        expected = torch.empty_like(network.heads[name].dense.weight)
        torch.nn.init.trunc_normal_(expected, std=std, a=-2 * std, b=2 * std, generator=generator)
        assert torch.equal(network.heads[name].dense.weight, expected)


def test_an_idle_head_decays_by_hand(made):
    before = made[2].state_dict()
    after, moments, _ = trained(made, ["number"])
    name = "heads.names.dense"
    shrunk = before[f"{name}.weight"] * (1 - RULES.learning_rate * RULES.weight_decay)
    torch.testing.assert_close(after[f"{name}.weight"], shrunk, atol=0, rtol=1e-6)
    assert not torch.equal(after[f"{name}.weight"], before[f"{name}.weight"])
    assert torch.equal(after[f"{name}.bias"], before[f"{name}.bias"])
    assert not moments[f"exp_avg/{name}.weight"].any()
    assert moments["exp_avg/heads.number.dense.weight"].any()


def test_steps_in_turn_are_those_of_adding_zero_times_every_head(made):
    """Idle heads have a gradient of zero, not none: their moments fade, their weights decay."""
    ours, our_moments, _ = trained(made, TURNS)
    theirs, their_moments, _ = trained(made, TURNS, AddingZeros)
    assert our_moments.keys() == their_moments.keys()
    for found, expected in ((ours, theirs), (our_moments, their_moments)):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_a_task_without_labels_is_not_one_of_several(made):
    with pytest.raises(SettingsError, match=r"\[\[tasks\]\]: translate cannot share an encoder"):
        label_tasks({**made[0], "german": Translate(TranslateSettings())})
