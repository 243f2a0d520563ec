"""Objectives in general: readers that share a pass, sums of single records, idle parameters."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import tiny_config, tiny_network
from tests.objectives.conftest import around, batch_of, letters
from tests.shapes import bert_heads
from unmask.data.corpus.examples import IS_NEXT, NO_PAIR, NOT_NEXT
from unmask.model.heads import VectorHead
from unmask.model.shape import Shape, VectorConfig
from unmask.objectives.base import (
    JointObjective,
    Objective,
    Term,
    TextStatistics,
    per_record,
    with_zero_gradients,
)
from unmask.objectives.mlm import MaskedLM, MaskSettings
from unmask.objectives.pairs import PairOrder, PairSettings
from unmask.system.errors import SettingsError
from unmask.system.settings import Settings
from unmask.train.steps.base import TrainingModule

TEXTS = [around([7, 8], [9]), around([10], [11, 12, 13]), around([14, 15], [16, 17, 18])]


@pytest.fixture(scope="module")
def readers():
    words = letters(23)
    return [MaskedLM(MaskSettings(mask_rate=0.5), words), PairOrder(PairSettings(), words)]


@pytest.fixture(scope="module")
def joint(readers):
    return readers[0].joined(readers[1:])


@pytest.fixture(params=["post", "pre"])
def network(request):
    heads = bert_heads(tokens=True, pair=True)
    return tiny_network(heads, norm=request.param, dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def batch(joint):
    plain = batch_of(TEXTS, pair=[IS_NEXT, NOT_NEXT, IS_NEXT], row_length=16)
    assert len(plain.tokens) < len(TEXTS), "rows hold several texts"
    return joint.prepare(plain, 3, 0.0)


@pytest.mark.parametrize("training", [False, True])
def test_the_sums_are_those_of_the_states_of_all_places(network, readers, joint, batch, training):
    network.train(training)
    hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    expected = {}
    for reader in readers:
        expected |= reader.read(network, hidden.flatten(0, 1)[reader.places(batch)], batch)
    found = joint(network, batch, {})
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_so_are_the_gradients(network, readers, joint, batch):
    network.train()
    hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    whole = sum(
        value
        for reader in readers
        for value in reader.read(
            network, hidden.flatten(0, 1)[reader.places(batch)], batch
        ).values()
    )
    weights = list(network.parameters())
    expected = torch.autograd.grad(whole, weights)
    found = torch.autograd.grad(sum(joint(network, batch, {}).values()), weights)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_one_pass_for_all_gives_what_a_pass_for_each_gives(
    network, readers, joint, batch, training
):
    network.train(training)
    expected = {}
    for reader in readers:
        expected |= reader(network, batch, {})
    found = joint(network, batch, {})
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_a_batch_is_prepared_by_each_in_turn(readers, joint, batch):
    plain = batch_of(TEXTS, pair=[IS_NEXT, NOT_NEXT, IS_NEXT], row_length=16)
    expected = plain
    for reader in readers:
        expected = reader.prepare(expected, 3, 0.0)
    assert torch.equal(batch.tokens, expected.tokens)
    assert batch.counts == expected.counts == {"mlm": len(batch.labels["mlm_tokens"]), "pair": 3}
    assert all(torch.equal(batch.labels[name], own) for name, own in expected.labels.items())


def test_the_main_question_comes_first_and_the_standard_form_is_at_fifteen_percent(readers, joint):
    terms = joint.describe()
    assert [(t.name, t.target) for t in terms] == [
        ("mlm", "masked tokens"),
        ("pair", "sentence pairs"),
    ]
    assert [term.choices for term in terms] == [len(letters(23)), 2]
    assert joint.terms == ["mlm", "pair"]
    assert joint.chance == pytest.approx(math.log(23))
    standard = joint.standard()
    assert isinstance(standard, JointObjective)
    assert standard.readers[0].config == MaskSettings()
    assert standard.readers[1] is readers[1]
    assert joint.readers[0].config.mask_rate == 0.5, "what is trained stays as it is"


def test_the_heads_are_those_of_all(readers, joint):
    shape = Shape.of(tiny_config())
    expected = {}
    for reader in readers:
        expected |= reader.heads(shape)
    assert joint.heads(shape) == expected == bert_heads(tokens=True, pair=True)


class Warm(PairOrder):
    """A reader with a parameter, a companion, a weight and an encoder of its own."""

    def describe(self):
        return [Term("warm", "pairs", choices=2)]

    def build(self, shape, companions):
        self.heat = nn.Parameter(torch.full([1], float(companions["sun"].config.width)))

    def companions(self):
        return {"sun": "some/model"}

    def encoders(self, shape):
        return {"second": shape.main.model_copy(update={"layers": 1})}

    @property
    def weights(self):
        return {"warm": 0.25}


def test_parameters_companions_encoders_and_weights_of_all_are_those_of_the_whole(readers):
    warm = Warm(PairSettings(), letters(23))
    whole = readers[0].joined([warm])
    assert whole.companions() == {"sun": "some/model"}
    assert whole.weights == {"warm": 0.25}
    assert whole.publish() == {"model": ()}
    shape = Shape.of(tiny_config())
    assert whole.encoders(shape) == warm.encoders(shape)
    assert not dict(whole.named_parameters())
    whole.build(shape, {"sun": tiny_network()})
    assert {name: p.item() for name, p in whole.named_parameters()} == {"readers.1.heat": 16.0}
    assert whole.readers[1].heat is warm.heat


def test_what_runs_the_network_in_its_own_way_has_no_pairs_beside_it(readers):
    class OwnPass(MaskedLM):
        def forward(self, network, batch, companions, each=False):
            return {}

    class NoReader(Objective):
        pass

    for objective in (OwnPass(MaskSettings(), letters(23)), NoReader(Settings())):
        says = f'{type(objective).__name__} overrides the encoder pass.*data.pairs="off"'
        with pytest.raises(SettingsError, match=says):
            objective.joined(readers[1:])


def publishing(folders):
    """A reader that publishes these folders."""

    class Own(PairOrder):
        def publish(self):
            return folders

    return Own(PairSettings(), letters(23))


def test_the_folders_that_are_published_are_those_of_all(readers):
    one = publishing({"model": ("main", "found"), "models/small": ("small",)})
    two = publishing({"model": ("main", "other"), "models/large": ()})
    assert one.joined([two]).publish() == {
        "model": ("main", "found", "other"),
        "models/small": ("small",),
        "models/large": (),
    }
    for whole in (one.joined([readers[1]]), readers[1].joined([one])):
        assert whole.publish() == {"model": (), "models/small": ("small",)}


def test_what_cannot_share_the_pass_of_a_reader_is_refused_and_named(readers):
    class OwnPass(PairOrder):
        def forward(self, network, batch, companions, each=False):
            return {}

    class NoReader(Objective):
        pass

    others = OwnPass(PairSettings(), letters(23)), NoReader(Settings()), readers[0].joined([])
    for other in others:
        says = f"{type(other).__name__} overrides the encoder pass.* with MaskedLM.*separate"
        with pytest.raises(SettingsError, match=says):
            readers[0].joined([readers[1], other])


def one_by_one(objective, network, texts, pairs):
    """The losses of texts, each in a batch of its own, with the numbers they have together."""
    whole = batch_of(texts, pair=pairs, row_length=16)
    found = []
    for i, text in enumerate(texts):
        own = batch_of([text], pair=[pairs[i]])
        own.number[:] = whole.number[i]
        found.append(objective(network, objective.prepare(own, 3, 0.0), {}))
    return found


@pytest.mark.parametrize("which", ["mlm", "pair", "both"])
@pytest.mark.parametrize("training", [False, True])
def test_the_losses_of_single_records_add_up_to_the_loss_of_the_batch(
    network, readers, joint, which, training
):
    network.train(training)
    objective = {"mlm": readers[0], "pair": readers[1], "both": joint}[which]
    pairs = [IS_NEXT, NO_PAIR, NOT_NEXT]
    batch = objective.prepare(batch_of(TEXTS, pair=pairs, row_length=16), 3, 0.0)
    apart = objective(network, batch, {}, each=True)
    assert list(apart) == objective.terms, "no counts of right answers"
    fused = objective(network, batch, {})
    alone = one_by_one(objective, network, TEXTS, pairs)
    for name in objective.terms:
        assert apart[name].shape == (3,)
        torch.testing.assert_close(apart[name].sum(), fused[name], atol=1e-4, rtol=1e-5)
        own = torch.stack([one[name] for one in alone])
        torch.testing.assert_close(apart[name], own, atol=1e-4, rtol=1e-5)
    if "pair" in objective.terms:
        assert apart["pair"][1] == 0.0


def test_texts_of_one_record_have_one_loss_together(network, joint):
    batch = batch_of(TEXTS, pair=[IS_NEXT, NOT_NEXT, IS_NEXT], row_length=16)
    single = joint(network, joint.prepare(batch, 3, 0.0), {}, each=True)
    joined = joint.prepare(batch, 3, 0.0)
    joined = type(joined)(**{**vars(joined), "record": torch.tensor([0, 0, 1])})
    found = joint(network, joined, {}, each=True)
    for name, losses in single.items():
        expected = torch.stack([losses[0] + losses[1], losses[2]])
        torch.testing.assert_close(found[name], expected)


def test_losses_are_added_up_by_record_by_hand():
    batch = batch_of([around([7])] * 4)
    losses, texts = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), torch.tensor([0, 2, 2, 3, 0])
    assert per_record(losses, texts, batch).tolist() == [17.0, 0.0, 6.0, 8.0]
    batch = type(batch)(**{**vars(batch), "record": torch.tensor([1, 1, 0, 2])})
    assert per_record(losses, texts, batch).tolist() == [6.0, 17.0, 8.0]


class Coupled(Objective):
    """Every text pulls at every other one."""

    coupled = True

    def describe(self):
        return [Term("pull", "texts")]

    def encode(self, network, batch):
        return network.encode(batch, places=batch.begins)

    def couple(self, vectors, batch):
        return {"pull": (vectors @ vectors.T).sum()}


def test_what_is_coupled_is_evaluated_batch_by_batch_and_has_no_loss_of_a_single_record(network):
    objective, batch = Coupled(Settings()), batch_of(TEXTS, row_length=16)
    vectors = network.encode(batch, places=batch.begins)
    found = objective(network, batch, {})
    torch.testing.assert_close(found["pull"], vectors.sum(dim=0).square().sum())
    with pytest.raises(SettingsError, match="Coupled: the loss compares texts, so no record"):
        objective(network, batch, {}, each=True)


def test_idle_parameters_get_a_gradient_of_zero_and_the_loss_its_own():
    used, idle = torch.tensor([2.0, 3.0], requires_grad=True), nn.Linear(3, 2)
    with torch.no_grad():
        idle.weight[0, 0] = math.nan
    plain = used.square().sum()
    loss = with_zero_gradients(plain, list(idle.parameters()))
    assert loss.item() == plain.item() == 13.0
    (2 * loss).backward()
    assert used.grad.tolist() == [8.0, 12.0]
    for parameter in idle.parameters():
        assert parameter.grad.shape == parameter.shape
        assert not parameter.grad.any(), "a NaN in an idle parameter stays there"


class Own(PairOrder):
    """A reader with a parameter of its own."""

    def __init__(self, start):
        super().__init__(PairSettings(), letters(23))
        self.heat = nn.Parameter(start)


def test_a_parameter_without_a_dimension_is_refused_and_named(readers):
    network = tiny_network(bert_heads(tokens=True, pair=True))
    TrainingModule(network, Own(torch.tensor([1.0]))).refuse_scalars()
    lone = Own(torch.tensor(1.0))
    with pytest.raises(SettingsError, match=r"parameter 'heat' has no dimension; .*shape \[1\]"):
        TrainingModule(network, lone).refuse_scalars()
    with pytest.raises(SettingsError, match=r"parameter 'readers\.1\.heat' has no dimension"):
        TrainingModule(network, readers[0].joined([lone])).refuse_scalars()


class Known(TextStatistics):
    """A text in which the last words are the rarest; counts how often it was asked."""

    asked = 0

    @property
    def frequencies(self):
        self.asked += 1
        return np.arange(23, 0, -1) / sum(range(24))


def test_only_who_wants_the_statistics_of_a_text_asks_for_them(network, readers):
    known, before = Known(), network.heads["tokens"].bias.clone()
    readers[0].joined(readers[1:]).begin(network, known)
    assert known.asked == 0
    assert torch.equal(network.heads["tokens"].bias, before)
    wants = MaskedLM(MaskSettings(init_output_bias=True), letters(23))
    wants.joined(readers[1:]).begin(network, known)
    assert known.asked == 1
    shares = network.heads["tokens"].bias.softmax(dim=0).detach().numpy()
    np.testing.assert_allclose(shares, known.frequencies, rtol=1e-5)


def test_without_a_corpus_nothing_is_known_of_words(network):
    wants = MaskedLM(MaskSettings(init_output_bias=True), letters(23))
    with pytest.raises(SettingsError, match="token frequencies are unknown"):
        wants.begin(network, TextStatistics())


def test_what_is_left_out_has_a_meaning():
    plain, shape, batch = Objective(Settings()), Shape.of(tiny_config()), batch_of(TEXTS)
    assert (plain.heads(shape), plain.encoders(shape), plain.companions()) == ({}, {}, {})
    assert plain.publish() == {"model": ()}
    assert plain.weights == {}
    assert plain.standard() is plain
    assert plain.prepare(batch, 0, 0.5) is batch
    assert not hasattr(plain, "vocabulary")


def test_a_head_of_vectors_is_as_wide_as_it_is_asked_to_be():
    network = tiny_network({"half": VectorConfig(width=5)})
    batch = batch_of(TEXTS)
    vectors = network.head("half", VectorHead)(network.encode(batch, places=batch.begins))
    assert vectors.shape == (3, 5)
