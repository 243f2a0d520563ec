"""Sources, one or several: their order, what is drawn for a batch, and what is refused."""

from dataclasses import dataclass

import pytest

from unmask.data.batch import pack_and_collate
from unmask.objectives.base import Objective
from unmask.system.distributed import Processes
from unmask.system.errors import DataError, SettingsError
from unmask.system.settings import Settings
from unmask.train.recipe import Recipe
from unmask.train.sources import Dealer, Mixture, ShuffledWindows


@dataclass(frozen=True)
class Text:
    """Some tokens, all of them the number of the text."""

    number: int
    length: int = 4

    @property
    def ids(self):
        return [self.number] * self.length

    @property
    def segments(self):
        return [0] * self.length


def made(**loop) -> Recipe:
    seed = loop.pop("seed", 0)
    return Recipe(seed=seed, schedule={"steps": 10}, loop={"batch_size": 8, **loop})


def plain(texts):
    return pack_and_collate(texts, pad_id=0)


def source(
    count, *, first=0, recipe=None, lay_out=plain, objective=None, **loop
) -> ShuffledWindows:
    """Texts whose tokens are their numbers, from `first` on."""
    items = [[Text(first + i)] for i in range(count)]
    objective = objective or Objective(Settings())  # takes batches as they are
    return ShuffledWindows(items, lay_out, objective, recipe or made(**loop))


def texts_of(pieces) -> list[int]:
    """The numbers of the texts in all batches, in their order."""
    batches = [piece.make() for piece in pieces]
    return [
        int(b.tokens[row, at])
        for b in batches
        for row, at in zip(b.row.tolist(), b.start.tolist(), strict=True)
    ]


def read(some, steps, cursor=None) -> list[list[int]]:
    """The texts of each step."""
    cursor, found = cursor or {}, []
    for step in range(steps):
        pieces, cursor = some.plan_step(cursor, step, 0.0)
        found.append(texts_of(pieces))
    return found


def test_another_seed_reads_in_another_order():
    orders = [sum(read(source(40, seed=seed), 5), []) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(40))


def test_fewer_texts_than_micro_batches_are_refused():
    with pytest.raises(
        SettingsError, match="loop.batch_size is 8, but a step has 9 micro-batches and"
    ):
        source(24, micro_batches=9)


def test_a_source_without_a_record_is_refused():
    with pytest.raises(DataError, match="there are no examples to train on; need at least one"):
        source(0)


def test_each_process_is_dealt_its_own_and_builds_no_other():
    built = []

    def lay_out(texts):
        built.append(len(texts))
        return plain(texts)

    some = source(24, micro_batch_tokens=8, lay_out=lay_out)  # four batches of two
    whole = [tuple(texts_of([piece])) for piece in some.plan_step({}, 0, 0.0)[0]]
    built.clear()
    dealt = [Dealer(some, Processes(rank, 3)).take({}, 0, 0.0) for rank in range(3)]
    assert len(built) == 4
    assert [len(own.micro_batches) for own in dealt] == [2, 1, 1]
    assert {own.rounds for own in dealt} == {2}
    assert all(own.cursor == dealt[0].cursor for own in dealt)
    for rank, own in enumerate(dealt):
        found = [tuple(piece.batch.tokens.unique().tolist()) for piece in own.micro_batches]
        assert found == [tuple(sorted(texts)) for texts in whole[rank::3]]


SIZES = {"small": 8, "large": 72}


def mixture(temperature=0.5, per="step", **loop) -> Mixture:
    """Eight texts from 0 on, and 72 from 100 on."""
    recipe = made(**loop)
    firsts = {"small": 0, "large": 100}
    sources = {n: source(SIZES[n], first=firsts[n], recipe=recipe) for n in SIZES}
    return Mixture(sources, temperature, recipe.seed, per)


@pytest.mark.parametrize(("per", "mixed"), [("step", False), ("piece", True), ("record", True)])
def test_a_batch_is_of_one_source_and_a_step_may_be_of_several(per, mixed):
    some, cursor, both = mixture(0.0, per, micro_batches=2), {}, False
    for step in range(20):
        pieces, cursor = some.plan_step(cursor, step, 0.0)
        sides = [{text < 100 for text in texts_of([piece])} for piece in pieces]
        assert all(len(side) == 1 for side in sides)
        both = both or len(set.union(*sides)) == 2
    assert both == mixed


def test_what_a_batch_draws_is_its_own_in_a_step_of_several_sources():
    """The seed that a batch is prepared by is that of its dropout, and no other batch has it."""
    seeds = []

    class Telling(Objective):
        def prepare(self, batch, key, progress):
            seeds.append(batch.seed)
            return batch

    recipe, telling = made(micro_batches=4), Telling(Settings())
    sources = {name: source(40, recipe=recipe, objective=telling) for name in ("one", "other")}
    pieces, _ = Mixture(sources, 0.5, 0, "record").plan_step({}, 0, 0.0)
    texts_of(pieces)
    assert seeds == [piece.seed for piece in pieces]
    assert len(set(seeds)) == len(pieces) >= 4


def test_more_data_sets_than_records_of_a_step_are_refused_where_each_record_is_drawn():
    recipe = made(micro_batches=3)  # six records in three micro-batches, and two are left
    sources = {str(i): source(40, recipe=recipe) for i in range(7)}
    with pytest.raises(
        SettingsError, match="loop.batch_size is 8, but a step has 7 data sets and 3 micro-bat"
    ):
        Mixture(sources, 0.5, 0, "record")
    Mixture(sources, 0.5, 0, "step")
