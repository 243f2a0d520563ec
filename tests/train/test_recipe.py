"""Recipes: the paper's own, what each setting is for, and who reads it."""

import ast
from functools import cache
from pathlib import Path
from typing import get_args, get_origin

import pytest

from tests.train.conftest import LENGTH, recipe
from unmask.data.corpus.config import ExampleSettings
from unmask.evaluation.held_out import HeldOutText
from unmask.evaluation.tasks import Labelled
from unmask.jobs.finetune import Finetune
from unmask.jobs.inputs.corpus import CorpusSource, objective_for
from unmask.jobs.multi_task import MultiTask
from unmask.jobs.pretrain import Pretrain
from unmask.jobs.settings_read import (
    FINETUNE,
    MULTI_TASK,
    PRETRAIN,
    TRANSLATE,
    check_network,
    task_recipe,
)
from unmask.model.config import LayerConfig, ModelConfig
from unmask.model.shape import DecoderConfig, HeadInput, Shape
from unmask.objectives import OBJECTIVES
from unmask.objectives.mlm import MaskedLM
from unmask.objectives.pairs import PairOrder
from unmask.system.errors import SettingsError
from unmask.system.plugins import find_class
from unmask.system.settings import Settings
from unmask.tasks import TASKS
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.compose import compose, known_recipes
from unmask.train.optim.schedules import Phase
from unmask.train.recipe import Choice, DecoderSettings, ModelSettings, Recipe

SCOPES = [PRETRAIN, FINETUNE, MULTI_TASK, TRANSLATE]
SOURCE = Path(__file__).parents[2] / "src" / "unmask"
WORDS = Vocabulary([*SPECIALS, "a"])


@pytest.fixture(scope="module")
def paper() -> Recipe:
    return compose(Pretrain.scope, "bert")


def test_bert_is_the_optimizer_of_the_paper(paper):
    how = paper.optimizer
    assert (how.learning_rate, how.beta1, how.beta2, how.weight_decay) == (1e-4, 0.9, 0.999, 0.01)
    assert (how.epsilon, how.max_grad_norm) == (1e-6, 1.0)  # of the code that was published with it


def test_bert_is_the_schedule_of_the_paper(paper):
    assert paper.schedule.steps == 1_000_000
    assert paper.schedule.warmup * paper.schedule.steps == 10_000
    assert (paper.schedule.kind, paper.schedule.floor) == ("linear", 0.0)


def test_bert_is_the_batches_of_the_paper(paper):
    first, second = paper.schedule.phases
    assert (first.share, first.length, first.rows) == (0.9, 128, 256)
    assert (second.share, second.length, second.rows) == (0.1, 512, 256)


def test_bert_is_the_objective_of_the_paper(paper):
    objective = objective_for(paper, WORDS)
    heads = objective.heads(Shape.of(paper.model.config(len(WORDS))))
    mlm, pairs = objective.readers
    assert isinstance(mlm, MaskedLM)
    assert isinstance(pairs, PairOrder)
    assert (mlm.config.mask_rate, mlm.config.mask_share, mlm.config.random_share) == (
        0.15,
        0.8,
        0.1,
    )
    assert not mlm.config.whole_word_masking
    assert (paper.data.pairs, paper.data.short_share) == ("nsp", 0.1)
    assert heads.keys() == {"tokens", "pooler", "pair"}


def test_bert_is_the_network_of_the_paper(paper):
    config = paper.model.config(30_522)
    assert (config.layers, config.width, config.heads, config.inner_width) == (12, 768, 12, 3072)
    assert (config.dropout, config.attention_dropout, config.activation) == (0.1, 0.1, "gelu")
    assert (config.max_length, config.norm, config.positions) == (512, "post", "learned")


def test_the_recipes_that_come_along_can_all_be_built():
    assert list(known_recipes()) == ["bert", "budget"]
    for name in known_recipes():
        made = compose(Pretrain.scope, name)
        changes = ["model.size=tiny"] if made.model.size == "auto" else []
        assert compose(Pretrain.scope, name, changes).model.config(1000)
    assert list(known_recipes(TRANSLATE.folder)) == ["attention", "gru", "lstm", "transformer"]
    for name in known_recipes(TRANSLATE.folder):
        assert compose(TRANSLATE, name).task
    assert sorted(known_recipes(FINETUNE.folder)) == sorted(TASKS)
    for name in known_recipes(FINETUNE.folder):
        scope, source = task_recipe(name)
        assert compose(scope, source).task.name == name


def test_an_unknown_size_is_named():
    with pytest.raises(SettingsError, match="unknown size 'tinny'; did you mean 'tiny'"):
        recipe(model={"size": "tinny"}).model.config(100)


def test_settings_of_the_model_replace_those_of_its_size():
    made = recipe(model={"size": "mini", "layers": 3, "positions": "rotary"})
    config = made.model.config(99)
    assert (config.vocab_size, config.layers, config.positions) == (99, 3, "rotary")
    assert (config.width, config.inner_width) == (32, 64)


def test_sequences_longer_than_the_network_reads_are_refused():
    says = r"^recipe \[\[schedule.phases\]\]: sequences of 65 tokens, but the network reads at"
    made = recipe(schedule={"phases": [{"length": 65}]})
    with pytest.raises(SettingsError, match=rf"{says} most 64. Lower length, or raise model"):
        check_network(made)
    check_network(recipe(schedule={"phases": [{"length": 64}]}))


def test_without_pairs_there_is_neither_pooler_nor_pair_head():
    made = recipe(data={"pairs": "off"})
    objective = objective_for(made, WORDS)
    assert isinstance(objective, MaskedLM)
    assert objective.heads(Shape.of(made.model.config(len(WORDS)))).keys() == {"tokens"}


def held_out(made: Recipe) -> HeldOutText:
    """What evaluates a run, as far as its recipe decides."""
    found = HeldOutText.__new__(HeldOutText)
    found.recipe = made
    return found


@pytest.mark.parametrize(("positions", "length"), [("learned", 32), ("rotary", 64)])
def test_a_run_is_evaluated_on_rows_that_it_ends_with_unless_it_must_learn_their_positions(
    positions, length
):
    schedule = {"phases": [{"share": 0.5, "length": 32}, {"share": 0.5, "length": 64}]}
    made = recipe(schedule=schedule, model={"positions": positions})
    assert held_out(made)._phase().length == length
    assert held_out(recipe(schedule=schedule))._phase().length == 32


@pytest.mark.parametrize(
    ("batch_tokens", "length", "rows"), [(256, 32, 8), (300, 32, 9), (10, 32, 1), (32, 32, 1)]
)
def test_rows_of_a_step_by_hand(batch_tokens, length, rows):
    assert Phase(length=length, batch_tokens=batch_tokens).rows == rows


@pytest.fixture
def sizes(corpus):
    """The rows of each micro-batch of a step: of `rows`, at most `micro` at a time."""

    def of(rows: int, micro: int, micro_batches: int) -> list[int]:
        made = recipe(
            schedule={"phases": [{"length": LENGTH, "batch_tokens": rows * LENGTH}]},
            loop={"micro_batch_tokens": micro * LENGTH or 1, "micro_batches": micro_batches},
        )
        objective = objective_for(made, corpus.tokenizer.vocabulary)
        pieces, _ = CorpusSource(corpus, made, objective).plan_step({}, 0, 0.0)
        return [len(piece.make().tokens) for piece in pieces]

    return of


@pytest.mark.parametrize(
    ("rows", "micro", "micro_batches", "expected"),
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
def test_rows_at_a_time_share_a_step_evenly_by_hand(sizes, rows, micro, micro_batches, expected):
    found = sizes(rows, micro, micro_batches)
    assert set(found) == {expected}
    assert sum(found) == rows
    assert len(found) % micro_batches == 0


@pytest.mark.parametrize(
    ("rows", "micro", "micro_batches", "expected"),
    [
        (9, 100, 2, [5, 4]),
        (9, 2, 2, [2, 2, 2, 1, 1, 1]),
        (7, 100, 3, [3, 2, 2]),
        (3, 1, 2, [2, 1]),  # more at a time than asked for: four micro-batches have not a row each
    ],
)
def test_rows_that_do_not_go_into_micro_batches_are_shared_as_evenly_as_can_be(
    sizes, rows, micro, micro_batches, expected
):
    assert sizes(rows, micro, micro_batches) == expected


def test_micro_batches_without_a_row_are_refused(sizes):
    says = "a step has 3 sequences, but 4 micro-batches. Raise batch_tokens to 128 or mo"
    with pytest.raises(SettingsError, match=says):
        sizes(3, 100, 4)


def test_an_evaluation_of_a_short_run_is_short_by_hand():
    def held(steps, times, tokens):
        schedule = {"steps": steps, "phases": [{"length": 32, "batch_tokens": 3200}]}
        return held_out(recipe(schedule=schedule, evaluate={"times": times, "tokens": tokens}))

    # 2,000 steps of 3,200 tokens, at a third of the cost, a tenth of them in 20 parts.
    assert held(2000, 20, 10**6)._max_tokens() == 96_000
    assert held(2000, 20, 50_000)._max_tokens() == 50_000, "no more than was asked"
    assert held(10, 20, 10**6)._max_tokens() == 8192, "but enough to tell anything"


def test_an_evaluation_of_a_timed_run_is_as_long_as_was_asked():
    schedule = {"steps": None, "minutes": 1.0}
    assert held_out(recipe(schedule=schedule, evaluate={"tokens": 777}))._max_tokens() == 777


def test_two_phases_count_by_their_shares():
    phases = [
        {"share": 0.5, "length": 32, "batch_tokens": 3200},
        {"share": 0.5, "length": 64, "batch_tokens": 6400},
    ]
    made = recipe(
        schedule={"steps": 2000, "phases": phases}, evaluate={"times": 20, "tokens": 10**6}
    )
    assert held_out(made)._max_tokens() == round(0.3 * (1000 * 3200 + 1000 * 6400) / 20)


def settings_in(hint: object) -> type[Settings] | None:
    """The table that an annotation stands for, if it does; a Choice has settings of others."""
    kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type)]
    return next((k for k in kinds if issubclass(k, Settings) and k is not Choice), None)


def leaves(kind: type[Settings], prefix: str = "", *, lists: bool = False) -> list[str]:
    """The names of all settings of a table; a list is one, unless its tables are looked into."""
    names = []
    for name, field in kind.model_fields.items():
        inside = settings_in(field.annotation)
        deeper = inside and (lists or get_origin(field.annotation) is not list)
        names += leaves(inside, f"{prefix}{name}.", lists=lists) if deeper else [f"{prefix}{name}"]
    return names


@cache
def attributes(folder: str) -> frozenset[str]:
    """Names that the files of a folder read as attributes."""
    trees = [ast.parse(path.read_text()) for path in sorted((SOURCE / folder).rglob("*.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return frozenset(
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def test_all_leaves_are_found():
    found = leaves(Recipe)
    assert {"seed", "model.size", "model.decoder.cell", "objective", "tasks"} <= set(found)
    assert {"schedule.phases", "loop.keep_checkpoints", "data.pairs", "evaluate.times"} <= set(
        found
    )
    deep = leaves(Recipe, lists=True)
    assert {"schedule.phases.length", "tasks.train", "tasks.task"} <= set(deep)
    assert len(found) > 70


def test_a_job_reads_what_its_scope_says():
    assert (Pretrain.scope, MultiTask.scope) == (PRETRAIN, MULTI_TASK)
    assert Finetune("model", Labelled(None, [], [])).scope == FINETUNE


def test_what_a_job_says_that_it_reads_is_a_setting():
    known = leaves(Recipe)
    tables = {name.rpartition(".")[0] for name in known} - {""}
    for scope in SCOPES:
        assert set(scope.reads) <= set(known) | tables, scope.job


@pytest.mark.parametrize("name", leaves(Recipe))
def test_every_setting_is_read_by_a_job(name):
    read = {read for scope in SCOPES for read in scope.reads}
    assert any(name == one or name.startswith(f"{one}.") for one in read)


def test_the_shape_of_a_network_is_set_by_the_same_names_as_in_its_config():
    shape = set(ModelConfig.model_fields) - {"vocab_size", "borrows"}  # a run has one encoder
    own = {"size", "decoder", "frozen", "head_layers"}
    assert not shape & own
    assert set(ModelSettings.model_fields) == shape | own
    reading = {"kind", *HeadInput.model_fields}  # a decoder reads the last layer of that encoder
    decoder = set(DecoderConfig.model_fields) - {"vocab_size", "shared"} - reading
    assert set(DecoderSettings.model_fields) == decoder


def test_every_setting_of_a_shape_reaches_the_config():
    """By its name: they are not read one by one."""
    changes = {"width": 48, "layers": 3, "heads": 3, "inner_width": 96, "max_length": 40}
    changes |= {"segments": 3, "activation": "relu", "gated": True, "norm": "pre"}
    changes |= {"norm_epsilon": 1e-5, "dropout": 0.3, "attention_dropout": 0.2, "init_std": 0.3}
    changes |= {"positions": "t5", "reach": 64, "buckets": 16, "causal": True, "window": 7}
    changes |= {"embedding_width": 24, "norm_bias": False, "bias": False, "head_size": 8}
    changes |= {"layer_groups": 2}
    others = {"vocab_size", "rotary_base", "cell", "borrows"}
    others |= {"norm_kind", "layer_settings", "layer_cycle"}
    assert set(ModelConfig.model_fields) - set(changes) == others
    config = ModelSettings(size="tiny", **changes).config(99).model_dump()
    assert {name: config[name] for name in changes} == changes
    others = {"size": "tiny", "positions": "rotary", "rotary_base": 7.0}
    assert ModelSettings(**others).config(99).rotary_base == 7.0
    windows = {"layer_settings": [{"window": 3}, {}], "layer_cycle": 1, "norm_kind": "rms"}
    config = ModelSettings(size="tiny", **windows).config(99)
    assert (config.layer_settings[0].window, config.layer_cycle) == (3, 1)
    assert config.norm_kind == "rms"
    cell = {"cell": "gru", "width": 8, "inner_width": 8, "layers": 1, "heads": 1}
    assert ModelSettings(positions="none", **cell).config(99).cell == "gru"


SHAPE = {f"model.{name}" for name in ModelConfig.model_fields}
SHAPE |= {f"model.layer_settings.{name}" for name in LayerConfig.model_fields}
SHAPE |= {f"model.decoder.{name}" for name in DecoderConfig.model_fields}
EXAMPLES = {f"data.{name}" for name in ExampleSettings.model_fields}


@pytest.mark.parametrize("name", sorted(set(leaves(Recipe, lists=True)) - SHAPE))
def test_every_setting_is_used_somewhere(name):
    found = attributes("train") | attributes("jobs") | attributes("evaluation")
    if name in EXAMPLES:
        found |= attributes("data")
    assert name.rpartition(".")[2] in found


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_setting_of_an_objective_is_used(name):
    config = find_class("objective", OBJECTIVES, name).Config
    assert set(config.model_fields) <= attributes("objectives")


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_of_a_task_is_used(name):
    found = attributes("tasks") | attributes("objectives")
    assert set(find_class("task", TASKS, name).Config.model_fields) <= found


def test_a_setting_that_nobody_uses_is_found():
    assert "short_share" in attributes("data")
    assert "short_share" not in attributes("train") | attributes("jobs") | attributes("evaluation")
    assert "peak_rate" not in attributes("train") | attributes("jobs") | attributes("evaluation")
