"""Recipes: the paper's own, what may be replaced, and mistakes that are named."""

import json

import pytest

from tests.train.conftest import LENGTH, recipe, table
from unmask.errors import SettingsError
from unmask.objectives.mlm import MaskedLM
from unmask.objectives.pairs import PairOrder
from unmask.settings import build, write_toml
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.pretrain import objective_for
from unmask.train.recipe import Phase, Recipe, changed, compose, known_recipes


def built(made) -> Recipe:
    return build(Recipe, made, where="recipe")


def refused(made) -> str:
    with pytest.raises(SettingsError) as error:
        built(made)
    return str(error.value)


@pytest.fixture(scope="module")
def paper() -> Recipe:
    return built(compose("bert"))


def test_bert_is_the_optimizer_of_the_paper(paper):
    how = paper.optimizer
    assert (how.rate, how.beta1, how.beta2, how.decay) == (1e-4, 0.9, 0.999, 0.01)
    assert (how.epsilon, how.clip) == (1e-6, 1.0)  # of the code that was published with it


def test_bert_is_the_schedule_of_the_paper(paper):
    assert paper.schedule.steps == 1_000_000
    assert paper.schedule.warmup * paper.schedule.steps == 10_000
    assert (paper.schedule.kind, paper.schedule.floor) == ("linear", 0.0)


def test_bert_is_the_batches_of_the_paper(paper):
    first, second = paper.phases
    assert (first.share, first.length, first.rows) == (0.9, 128, 256)
    assert (second.share, second.length, second.rows) == (0.1, 512, 256)


def test_bert_is_the_objective_of_the_paper(paper):
    objective, heads = objective_for(paper, Vocabulary([*SPECIALS, "a"]))
    mlm, pairs = objective.readers
    assert isinstance(mlm, MaskedLM)
    assert isinstance(pairs, PairOrder)
    assert (mlm.how.rate, mlm.how.mask_share, mlm.how.random_share) == (0.15, 0.8, 0.1)
    assert not mlm.how.whole_words
    assert (paper.examples.pairs, paper.examples.short_share) == ("nsp", 0.1)
    assert heads.tokens
    assert heads.pooler
    assert heads.pair


def test_bert_is_the_network_of_the_paper(paper):
    config = paper.network(30_522)
    assert (config.layers, config.width, config.heads, config.inner_width) == (12, 768, 12, 3072)
    assert (config.dropout, config.attention_dropout, config.activation) == (0.1, 0.1, "gelu")
    assert (config.max_length, config.norm, config.positions) == (512, "post", "learned")


def test_the_recipes_that_come_along_can_all_be_built():
    assert list(known_recipes()) == ["bert", "budget"]
    for name in known_recipes():
        changes = ["model.size=tiny"] if compose(name)["model"]["size"] == "auto" else []
        assert built(compose(name, changes)).network(1000)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"sede": 1}, "recipe: unknown key 'sede'; did you mean 'seed'?"),
        (
            {"train": {"save_minuts": 1.0}},
            "recipe [train]: unknown key 'save_minuts'; did you mean 'save_minutes'?",
        ),
        (
            {"optimizer": {"learning_rate": 1.0}},
            "recipe [optimizer]: unknown key 'learning_rate'; ",
        ),
        ({"schedule": {"step": 9}}, "recipe [schedule]: unknown key 'step'; did you mean 'steps'?"),
        (
            {"phases": [{"length": 32}, {"lenght": 64}]},
            "recipe [phases]: unknown key 'lenght'; did you mean 'length'?",
        ),
        (
            {"examples": {"pears": "nsp"}},
            "recipe [examples]: unknown key 'pears'; did you mean 'pairs'?",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_unknown_key_is_named_with_its_table_and_the_nearest(made, says):
    assert refused({**table(), **made}).startswith(says)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"seed": -1}, "recipe: 'seed' is -1; "),
        ({"seed": "one"}, "recipe: 'seed' is 'one'; "),
        ({"seed": 1.5}, "recipe: 'seed' is 1.5; "),
        ({"train": {"keep": 1}}, "recipe: 'train.keep' is 1; "),
        ({"train": {"precision": "fp16"}}, "recipe: 'train.precision' is 'fp16'; "),
        ({"phases": [{"length": 7}]}, "recipe: 'phases.0.length' is 7; "),
        ({"phases": [{"batch_tokens": 0}]}, "recipe: 'phases.0.batch_tokens' is 0; "),
        ({"optimizer": {"rate": "fast"}}, "recipe: 'optimizer.rate' is 'fast'; "),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_value_that_cannot_be_is_named_with_its_place(made, says):
    assert refused({**table(), **made}).startswith(says)


def test_a_recipe_without_a_length_is_refused():
    assert refused({"model": {"size": "tiny"}}) == "recipe: 'schedule' is missing; give it a value."


def test_the_shares_of_the_phases_make_a_whole():
    phases = [{"share": 0.9, "length": 32}, {"share": 0.2, "length": 64}]
    says = "recipe: the shares of the phases make 1.1; need 1. Change one."
    assert refused(table(phases=phases)) == says


def test_an_unknown_setting_of_the_model_is_named():
    says = r"^recipe \[model\]: unknown key 'widht'; did you mean 'width'\?"
    with pytest.raises(SettingsError, match=says):
        recipe(model={"widht": 32}).network(100)


def test_an_unknown_size_is_named():
    with pytest.raises(SettingsError, match="unknown size 'tinny'; did you mean 'tiny'"):
        recipe(model={"size": "tinny"}).network(100)


def test_settings_of_the_model_replace_those_of_its_size():
    config = recipe(model={"size": "mini", "layers": 3, "positions": "rotary"}).network(99)
    assert (config.vocab_size, config.layers, config.positions) == (99, 3, "rotary")
    assert (config.width, config.inner_width) == (32, 64)


def test_the_vocabulary_is_the_corpuss():
    says = r"^recipe \[model\]: vocab_size is 50; the corpus brings its own .* Leave vocab_size out"
    with pytest.raises(SettingsError, match=says):
        recipe(model={"vocab_size": 50}).network(99)


def test_rows_longer_than_the_network_reads_are_refused():
    says = r"^recipe \[\[phases\]\]: rows of 65 tokens; the network reads at most 64. Lower length"
    with pytest.raises(SettingsError, match=says):
        recipe(phases=[{"length": 65}]).network(99)


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        ({"name": "mlmm"}, "unknown objective 'mlmm'; did you mean 'mlm'?"),
        ({"name": "mlm", "rat": 0.2}, "unknown key 'rat'; did you mean 'rate'?"),
        ({"name": "mlm", "rate": 2.0}, "'rate' is 2.0; "),
    ],
    ids=str,
)
def test_a_mistake_in_the_objective_is_named(objective, says):
    made = recipe(objective=objective)
    with pytest.raises(SettingsError) as error:
        objective_for(made, Vocabulary([*SPECIALS, "a"]))
    assert str(error.value).startswith(f"recipe [objective]: {says}")


def test_without_pairs_there_is_neither_pooler_nor_pair_head():
    objective, heads = objective_for(
        recipe(examples={"pairs": "off"}), Vocabulary([*SPECIALS, "a"])
    )
    assert [type(reader) for reader in objective.readers] == [MaskedLM]
    assert heads.tokens
    assert not heads.pooler
    assert not heads.pair


def test_steps_replace_the_recipes():
    made = built(compose("bert", steps=50))
    assert (made.schedule.steps, made.schedule.minutes) == (50, None)
    assert made.schedule.warmup == 0.01


@pytest.mark.parametrize(("positions", "length"), [("learned", 32), ("rotary", 64)])
def test_a_run_is_evaluated_on_rows_that_it_ends_with_unless_it_must_learn_their_positions(
    positions, length
):
    phases = [{"share": 0.5, "length": 32}, {"share": 0.5, "length": 64}]
    assert recipe(phases=phases, model={"positions": positions}).evaluated.length == length
    assert recipe(phases=phases).evaluated.length == 32


def test_minutes_replace_steps():
    made = built(compose("bert", minutes=1.5))
    assert (made.schedule.steps, made.schedule.minutes) == (None, 1.5)


def test_a_run_has_one_length():
    with pytest.raises(SettingsError, match="--steps and --minutes: a run has one length. Give on"):
        compose("bert", steps=5, minutes=1.0)


def test_a_length_makes_one_phase():
    (phase,) = built(compose("bert", length=64)).phases
    assert (phase.share, phase.length, phase.batch_tokens) == (1.0, 64, 32_768)


def test_batch_tokens_are_set_for_every_phase():
    assert [p.batch_tokens for p in built(compose("bert", batch_tokens=4096)).phases] == [4096] * 2
    (phase,) = built(compose("bert", length=64, batch_tokens=640)).phases
    assert phase.rows == 10


def test_assignments_come_last():
    words = ["model.size=mini", "phases.1.length=256", "schedule.steps=7", "optimizer.rate=2e-3"]
    made = built(compose("bert", words, steps=50))
    assert made.model["size"] == "mini"
    assert [phase.length for phase in made.phases] == [128, 256]
    assert made.schedule.steps == 7
    assert made.optimizer.rate == 2e-3


def test_a_recipe_may_be_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(write_toml(table(seed=5)))
    assert compose(str(path)) == table(seed=5)


def test_an_unknown_recipe_is_named_with_the_nearest():
    with pytest.raises(SettingsError, match="unknown recipe 'brt'; did you mean 'bert'"):
        compose("brt")


@pytest.mark.parametrize(
    ("contents", "says"),
    [(None, "cannot be read"), ("seed = = 1\n", "not valid TOML"), (b"\xff", "not valid TOML")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, contents, says):
    path = tmp_path / "mine.toml"
    if contents is not None:
        path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    with pytest.raises(SettingsError, match=f"^{path}: {says}"):
        compose(str(path))


@pytest.mark.parametrize(
    ("batch_tokens", "length", "rows"), [(256, 32, 8), (300, 32, 9), (10, 32, 1), (32, 32, 1)]
)
def test_rows_of_a_step_by_hand(batch_tokens, length, rows):
    assert Phase(length=length, batch_tokens=batch_tokens).rows == rows


@pytest.mark.parametrize(
    ("rows", "micro", "world", "expected"),
    [
        (8, 2, 1, 2),
        (8, 3, 1, 2),  # three do not go into eight
        (8, 100, 1, 8),
        (8, 100, 2, 4),
        (8, 3, 2, 2),
        (12, 5, 2, 3),
        (7, 3, 1, 1),
        (8, 0, 1, 1),  # a row is the least
        (6, 4, 3, 2),
    ],
)
def test_rows_at_a_time_share_a_step_evenly_by_hand(rows, micro, world, expected):
    made = recipe(
        phases=[{"length": LENGTH, "batch_tokens": rows * LENGTH}],
        train={"micro_tokens": micro * LENGTH or 1},
    )
    found = made.micro_rows(made.phases[0], world)
    assert found == expected
    assert rows % (found * world) == 0


def test_rows_that_processes_cannot_share_are_refused():
    made = recipe(phases=[{"length": 32, "batch_tokens": 9 * 32}])
    says = (
        "9 rows a step cannot be shared evenly by 2 processes. Change batch_tokens to a multi.*64"
    )
    with pytest.raises(SettingsError, match=says):
        made.micro_rows(made.phases[0], 2)


def test_an_evaluation_of_a_short_run_is_short_by_hand():
    def tokens(steps, **train):
        phases = [{"length": 32, "batch_tokens": 3200}]
        return recipe(schedule={"steps": steps}, phases=phases, train=train).evaluated_tokens()

    # 2,000 steps of 3,200 tokens, at a third of the cost, a tenth of them in 20 parts.
    assert tokens(2000, evaluations=20, eval_tokens=10**6) == 96_000
    assert tokens(2000, evaluations=20, eval_tokens=50_000) == 50_000, "no more than was asked"
    assert tokens(10, evaluations=20, eval_tokens=10**6) == 8192, "but enough to tell anything"
    assert tokens(10, evaluations=0, eval_tokens=777) == 777


def test_an_evaluation_of_a_timed_run_is_as_long_as_was_asked():
    made = recipe(schedule={"steps": None, "minutes": 1.0}, train={"eval_tokens": 777})
    assert made.evaluated_tokens() == 777


def test_two_phases_count_by_their_shares():
    phases = [
        {"share": 0.5, "length": 32, "batch_tokens": 3200},
        {"share": 0.5, "length": 64, "batch_tokens": 6400},
    ]
    made = recipe(
        schedule={"steps": 2000}, phases=phases, train={"evaluations": 20, "eval_tokens": 10**6}
    )
    assert made.evaluated_tokens() == round(0.3 * (1000 * 3200 + 1000 * 6400) / 20)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 1}, "seed (0 then, 1 now)"),
        ({"optimizer": {"rate": 2e-3}}, "optimizer.rate (0.001 then, 0.002 now)"),
        ({"model": {"layers": 2}}, "model.layers (1 then, 2 now)"),
        ({"model": {"norm": "pre"}}, "model.norm (None then, 'pre' now)"),
        ({"phases": [{"length": 16}]}, "phases.0.batch_tokens (256 then, 32768 now)"),
        ({"train": {"micro_tokens": 999}}, "train.micro_tokens (128 then, 999 now)"),
    ],
    ids=str,
)
def test_the_first_difference_of_two_recipes_is_named(change, says):
    before, now = (recipe(**c).model_dump(exclude_none=True) for c in ({}, change))
    assert changed(before, now) == says


def test_what_decides_nothing_that_is_learned_is_no_difference():
    free = {"save_minutes": 3.0, "save_steps": 5, "keep": 4, "log_steps": 2}
    before, now = (recipe(train=c).model_dump(exclude_none=True) for c in ({}, free))
    assert changed(before, now) is None


def test_a_recipe_read_back_is_the_same(tmp_path):
    import tomllib

    resolved = recipe(train={"save_steps": 5}).model_dump(exclude_none=True)
    assert changed(tomllib.loads(write_toml(resolved)), resolved) is None
    assert json.loads(json.dumps(resolved)) == tomllib.loads(write_toml(resolved))
