"""Composing a recipe: names, files and changes; names of the first version; what a run stores."""

import json
import tomllib

import pytest

from tests.train.conftest import Heard, pretrain, recipe, table
from tests.train.first_version import BERT, BUDGET, GRU, MULTI, NEW_MULTI, QA
from tests.train.test_recipe import SCOPES, leaves
from unmask.jobs.settings_read import FINETUNE, MULTI_TASK, PRETRAIN, TRANSLATE
from unmask.objectives.mlm import MaskSettings
from unmask.system.errors import FolderError, SettingsError
from unmask.system.settings import read_toml, write_toml
from unmask.tasks.classify import ClassifySettings
from unmask.tasks.qa import QaSettings
from unmask.tasks.translate import TranslateSettings
from unmask.train.compose import MOVED, compose, difference
from unmask.train.recipe import Recipe

TASKS = [  # of a run of several
    {"name": "mood", "task": {"name": "classify"}, "train": "a.tsv", "dev": "b.tsv"},
    {"name": "who", "task": {"name": "ner"}, "train": "a.conll", "dev": "b.conll"},
]
LEAST = {  # the least that each job needs
    "pretrain": {"schedule": {"steps": 10}},
    "finetune": {"task": {"name": "classify"}},
    "finetune multi": {"tasks": TASKS},
    "translate": {"model": {"width": 32, "layers": 1, "heads": 2, "inner_width": 64}},
}


def refused(given, *changes, scope=PRETRAIN) -> str:
    with pytest.raises(SettingsError) as error:
        compose(scope, given, changes)
    return str(error.value)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"sede": 1}, "recipe: unknown key 'sede'; did you mean 'seed'?"),
        (
            {"loop": {"save_minuts": 1.0}},
            "recipe [loop]: unknown key 'save_minuts'; did you mean 'save_minutes'?",
        ),
        (
            {"train": {"save_minuts": 1.0}},
            "recipe [loop]: unknown key 'save_minuts'; did you mean 'save_minutes'?",
        ),
        ({"tune": {"bach": 3}}, "recipe: unknown key 'tune'; "),
        (
            {"optimizer": {"learnig_rate": 1.0}},
            "recipe [optimizer]: unknown key 'learnig_rate'; ",
        ),
        ({"schedule": {"step": 9}}, "recipe [schedule]: unknown key 'step'; did you mean 'steps'?"),
        (
            {"schedule": {"steps": 9, "phases": [{"length": 32}, {"lenght": 64}]}},
            "recipe [schedule] [phases]: unknown key 'lenght'; did you mean 'length'?",
        ),
        ({"data": {"pears": "nsp"}}, "recipe [data]: unknown key 'pears'; did you mean 'pairs'?"),
        ({"model": {"widht": 32}}, "recipe [model]: unknown key 'widht'; did you mean 'width'?"),
        (
            {"model": {"decoder": {"feed": "word"}}},
            "recipe [model] [decoder]: unknown key 'feed'; did you mean 'feeds'?",
        ),
    ],
    ids=str,
)
def test_an_unknown_key_is_named_with_its_table_and_the_nearest(made, says):
    assert refused({**table(), **made}).startswith(says)


def test_an_unknown_key_is_named_also_in_a_change():
    assert refused(table(), "loop.prefetchh=3").startswith(
        "recipe [loop]: unknown key 'prefetchh'; did you"
    )


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"seed": -1}, "recipe: 'seed' is -1; "),
        ({"seed": "one"}, "recipe: 'seed' is 'one'; "),
        ({"seed": 1.5}, "recipe: 'seed' is 1.5; "),
        ({"loop": {"keep_checkpoints": 1}}, "recipe: 'loop.keep_checkpoints' is 1; "),
        ({"loop": {"precision": "fp16"}}, "recipe: 'loop.precision' is 'fp16'; "),
        ({"loop": 3}, "recipe: 'loop' is 3; "),
        ({"optimizer": 3}, "recipe: 'optimizer' is 3; "),
        ({"model": {"layers": "two"}}, "recipe: 'model.layers' is 'two'; "),
        ({"optimizer": {"learning_rate": "fast"}}, "recipe: 'optimizer.learning_rate' is 'fast'; "),
        ({"schedule": {"steps": 0}}, "recipe: 'schedule.steps' is 0; "),
        (
            {"schedule": {"steps": 1, "phases": [{"length": 7}]}},
            "recipe: 'schedule.phases.0.length' is 7; ",
        ),
        (
            {"schedule": {"steps": 1, "phases": [{"batch_tokens": 0}]}},
            "recipe: 'schedule.phases.0.batch_tokens' is 0; ",
        ),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_named_with_its_place(made, says):
    assert refused({**table(), **made}).startswith(says)


@pytest.mark.parametrize("name", ["optimizer.learning_rate", "schedule.warmup", "schedule.epochs"])
def test_a_table_where_a_job_has_a_number_of_its_own_is_refused(name):
    top, _, inner = name.partition(".")
    says = f"recipe: '{name}' is {{'x': 3}}; input should be a valid number"
    given = {**LEAST["finetune"], top: {inner: {"x": 3}}}
    assert says in refused(given, scope=FINETUNE)
    assert says in refused(LEAST["finetune"], f"{name}.x=3", scope=FINETUNE)


def test_a_recipe_without_a_length_is_refused():
    assert refused({"model": {"size": "tiny"}}) == "recipe: 'schedule' is missing. Give it a value."
    says = "recipe [schedule]: a run has steps, minutes or epochs; need one of them, got none of"
    assert refused({"schedule": {"warmup": 0.1}}).startswith(says)


def test_the_shares_of_the_phases_make_a_whole():
    phases = [{"share": 0.9, "length": 32}, {"share": 0.2, "length": 64}]
    says = "recipe [schedule]: the shares of the phases add up to 1.1; they must add up to 1."
    assert refused(table(schedule={"phases": phases})) == says


def test_the_vocabulary_is_the_corpuss():
    says = "recipe [model]: unknown key 'vocab_size'; "
    assert refused(table(model={"vocab_size": 50})).startswith(says)


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        ({"name": "mlmm"}, "unknown objective 'mlmm'; did you mean 'mlm'?"),
        ({"name": "mlm", "rat": 0.2}, "unknown key 'rat'; did you mean 'mask_rate'?"),
        ({"name": "mlm", "mask_rate": 2.0}, "'mask_rate' is 2.0; "),
    ],
    ids=str,
)
def test_a_mistake_in_the_objective_is_named(objective, says):
    assert refused(table(objective=objective)).startswith(f"recipe [objective]: {says}")


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"name": "clasify"}, "unknown task 'clasify'; did you mean 'classify'?"),
        ({"name": "qa", "strid": 9}, "unknown key 'strid'; did you mean 'stride'?"),
        ({"metric": "f1"}, "'name' is missing; need one of classify, "),
    ],
    ids=str,
)
def test_a_mistake_in_a_task_is_named(task, says):
    assert refused({"task": task}, scope=FINETUNE).startswith(f"recipe [task]: {says}")
    several = {"tasks": [{**TASKS[0], "task": task}]}
    assert refused(several, scope=MULTI_TASK).startswith(f"recipe [task]: {says}")


@pytest.mark.parametrize("given", [{}, {"task": {}}, {"seed": 1}], ids=str)
def test_a_task_is_needed(given):
    says = "recipe [task]: 'name' is missing; need the name of a task."
    assert refused(given, scope=FINETUNE) == says


def test_tasks_with_the_same_name_are_refused():
    says = "recipe: task names are not unique: ['mood', 'mood']. Give each task its own name."
    assert refused({"tasks": [TASKS[0]] * 2}, scope=MULTI_TASK) == says


def test_steps_replace_the_recipes():
    made = compose(PRETRAIN, "bert", ["schedule.steps=50"])
    assert (made.schedule.steps, made.schedule.minutes) == (50, None)
    assert made.schedule.warmup == 0.01


def test_minutes_replace_steps():
    made = compose(PRETRAIN, "bert", ["schedule.minutes=1.5"])
    assert (made.schedule.steps, made.schedule.minutes) == (None, 1.5)


@pytest.mark.parametrize("length", ["steps", "minutes", "epochs"])
def test_any_length_replaces_that_of_a_file_and_that_of_the_job(length):
    for source in ("qa", {"task": {"name": "qa"}}):
        made = compose(FINETUNE, source, [f"schedule.{length}=7"])
        found = {name: getattr(made.schedule, name) for name in ("steps", "minutes", "epochs")}
        assert found == {"steps": None, "minutes": None, "epochs": None, length: 7}


def test_a_run_has_one_length():
    says = "recipe [schedule]: a run has steps, minutes or epochs; need one of them, got steps and "
    assert refused("bert", "schedule.steps=5", "schedule.minutes=1.0").startswith(says)
    assert refused({"schedule": {"steps": 5, "minutes": 1.0}}).startswith(says)


def test_assignments_come_last():
    changes = ["schedule.steps=50", "model.size=mini", "schedule.phases.1.length=256"]
    changes += ["schedule.steps=7", "optimizer.learning_rate=2e-3"]
    made = compose(PRETRAIN, "bert", changes)
    assert made.model.size == "mini"
    assert [phase.length for phase in made.schedule.phases] == [128, 256]
    assert made.schedule.steps == 7
    assert made.optimizer.learning_rate == 2e-3


def test_a_recipe_may_be_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(write_toml(table(seed=5)))
    assert compose(PRETRAIN, str(path)) == compose(PRETRAIN, path) == recipe(seed=5)
    assert recipe(seed=5).seed == 5


def test_an_unknown_recipe_is_named_with_the_nearest():
    assert refused("brt").startswith("unknown recipe 'brt'; did you mean 'bert'")
    assert "'lstm'" in refused("lstn", scope=TRANSLATE)


@pytest.mark.parametrize(
    ("contents", "says"),
    [(None, "cannot be read"), ("seed = = 1\n", "not valid TOML"), (b"\xff", "not valid TOML")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, contents, says):
    path = tmp_path / "mine.toml"
    if contents is not None:
        path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    assert refused(str(path)).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 1}, "seed (was 0, is now 1)"),
        (
            {"optimizer": {"learning_rate": 2e-3}},
            "optimizer.learning_rate (was 0.001, is now 0.002)",
        ),
        ({"model": {"layers": 2}}, "model.layers (was 1, is now 2)"),
        ({"model": {"norm": "pre"}}, "model.norm (was None, is now 'pre')"),
        (
            {"objective": {"name": "mlm", "mask_rate": 0.2}},
            "objective.mask_rate (was 0.15, is now 0.2)",
        ),
        (
            {"schedule": {"phases": [{"length": 16, "batch_tokens": 512}]}},
            "schedule.phases.0.batch_tokens (was 256, is now 512)",
        ),
        ({"loop": {"micro_batch_tokens": 999}}, "loop.micro_batch_tokens (was 128, is now 999)"),
    ],
    ids=str,
)
def test_the_first_difference_of_two_recipes_is_named(change, says):
    before, now = (PRETRAIN.table(recipe(**c)) for c in ({}, change))
    assert difference(before, now) == says


def test_what_decides_nothing_that_is_learned_is_no_difference():
    free = {"save_minutes": 3.0, "save_steps": 5, "keep": 4, "log_steps": 2}
    before, now = (PRETRAIN.table(recipe(loop=c)) for c in ({}, free))
    assert before != now
    assert difference(before, now) is None


def test_a_recipe_read_back_is_the_same():
    written = PRETRAIN.table(recipe(loop={"save_steps": 5}))
    assert difference(tomllib.loads(write_toml(written)), written) is None
    assert json.loads(json.dumps(written)) == tomllib.loads(write_toml(written))


def put(name: str, value: object) -> dict:
    """A table with one setting: `put("a.b", 1)` is {"a": {"b": 1}}."""
    first, _, rest = name.partition(".")
    return {first: put(rest, value)} if rest else {first: value}


def both(one: dict, other: dict) -> dict:
    """Two tables in one."""
    result = dict(one)
    for key, value in other.items():
        known = result.get(key)
        deeper = isinstance(known, dict) and isinstance(value, dict)
        result[key] = both(known, value) if deeper else value
    return result


# A value that each setting can have, where 1 is none.
VALUES = {
    "task": {"name": "classify"},
    "objective": {"name": "mlm"},
    "tasks": TASKS,
    "schedule.phases": [{"length": 32}],
    "model.head_layers": [1],
    "model.decoder.cell": "gru",
    "model.decoder.context": "last",
    "model.decoder.feeds": "word",
    "model.decoder.attention": "dot",
    "model.size": "tiny",
    "model.activation": "relu",
    "model.gated": True,
    "model.norm": "pre",
    "model.positions": "rotary",
    "model.cell": "gru",
    "model.causal": True,
    "tokenizer.max_length": 16,
    "tokenizer.size": 60,
    "tokenizer.joint": False,
    "tokenizer.cased": True,
    "tokenizer.accents": False,
    "data.pairs": "off",
}


def reads(scope, name) -> bool:
    return any(name == read or name.startswith(f"{read}.") for read in scope.reads)


UNREAD = [
    pytest.param(scope, name, id=f"{scope.job}: {name}")
    for scope in SCOPES
    for name in leaves(Recipe)
    if not reads(scope, name)
]


def test_every_job_leaves_something_unread():
    assert {one.values[0].job for one in UNREAD} == {scope.job for scope in SCOPES}
    assert len(UNREAD) > 60


@pytest.mark.parametrize(("scope", "name"), UNREAD)
def test_a_setting_that_a_job_does_not_read_is_refused_by_its_name(scope, name):
    least, value = LEAST[scope.job], VALUES.get(name, 1)
    says = f"recipe: {name} is set, but {scope.job} does not read it. Remove it."
    assert refused(both(least, put(name, value)), scope=scope) == says
    if not isinstance(value, dict | list):
        assert refused(least, f"{name}={json.dumps(value)}", scope=scope) == says


@pytest.mark.parametrize(("scope", "name"), UNREAD)
def test_a_stored_setting_that_a_job_does_not_read_is_dropped_with_a_notice(scope, name):
    least, heard = LEAST[scope.job], Heard()
    stored = both(least, put(name, VALUES.get(name, 1)))
    found = compose(scope, stored, stored=True, console=heard)
    assert heard.said == [f"notice: ignoring settings that {scope.job} does not read: {name}"]
    assert found == compose(scope, least)


@pytest.mark.parametrize("name", ["momentum", "muon_factor"])
@pytest.mark.parametrize("scope", SCOPES)
def test_settings_of_muon_are_read_with_muon_alone(scope, name):
    least, heard = LEAST[scope.job], Heard()
    says = f"recipe: optimizer.{name} is set, but {scope.job} does not read it. Remove it."
    assert refused(least, f"optimizer.{name}=0.5", scope=scope) == says
    changes = ["optimizer.kind=muon", f"optimizer.{name}=0.5"]
    assert getattr(compose(scope, least, changes).optimizer, name) == 0.5
    stored = both(least, put(f"optimizer.{name}", 0.5))
    assert compose(scope, stored, stored=True, console=heard) == compose(scope, least)
    assert heard.said == [
        f"notice: ignoring settings that {scope.job} does not read: optimizer.{name}"
    ]


def test_what_is_stored_is_what_the_job_reads():
    for scope in SCOPES:
        found = scope.table(compose(scope, LEAST[scope.job]))
        names = [name for name in leaves(Recipe) if _has(found, name)]
        assert names
        assert all(reads(scope, name) for name in names), scope.job
        assert not scope.unread(found)


def _has(table, name) -> bool:
    first, _, rest = name.partition(".")
    return first in table and (not rest or _has(table[first], rest))


# The settings of the first version

CORPUS = {"examples": "data", "phases": "schedule.phases"}
FILES = {  # a file of the first version, whose it is, the same file now, and the names that moved
    "bert": (PRETRAIN, BERT, "bert", {**CORPUS, "objective.rate": "objective.mask_rate"}),
    "budget": (
        PRETRAIN,
        BUDGET,
        "budget",
        {
            **CORPUS,
            "objective.rate": "objective.mask_rate",
            "objective.frequencies": "objective.init_output_bias",
        },
    ),
    "qa": (
        FINETUNE,
        QA,
        "qa",
        {
            "tune.batch": "loop.batch_size",
            "tune.length": "tokenizer.max_length",
            "tune.epochs": "schedule.epochs",
            "train.evaluations": "evaluate.times",
        },
    ),
    "gru": (
        TRANSLATE,
        GRU,
        "gru",
        {
            "task.smoothing": "task.label_smoothing",
            "decoder": "model.decoder",
            "vocabulary": "tokenizer",
            "tune.batch": "loop.batch_size",
            "tune.epochs": "schedule.epochs",
            "train.evaluations": "evaluate.times",
        },
    ),
    "multi": (
        MULTI_TASK,
        MULTI,
        tomllib.loads(NEW_MULTI),
        {
            "temperature": "data.temperature",
            "tune.batch": "loop.batch_size",
            "tune.length": "tokenizer.max_length",
            "tune.epochs": "schedule.epochs",
            "tune.frozen": "model.frozen",
            "tune.layer_decay": "optimizer.layer_decay",
            "tune.head_factor": "optimizer.head_factor",
            "tune.patience": "evaluate.patience",
            "train.micro_tokens": "loop.micro_batch_tokens",
            "train.evaluations": "evaluate.times",
            "train.keep": "loop.keep_checkpoints",
        },
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_first_version_means_what_it_meant_and_its_new_names_are_told(name, tmp_path):
    scope, text, now, moved = FILES[name]
    (tmp_path / "old.toml").write_text(text)
    before, after = Heard(), Heard()
    made = compose(scope, tmp_path / "old.toml", console=before)
    assert made == compose(scope, now, console=after)
    optimizer = tomllib.loads(text).get("optimizer", {})
    inside = {f"optimizer.{key}": MOVED.get(f"optimizer.{key}") for key in optimizer}
    moved = moved | {old: new for old, new in inside.items() if new}
    notices = [f"notice: the setting {old} is now called {new}" for old, new in moved.items()]
    assert sorted(before.said) == sorted(notices)
    assert after.said == [], "what comes with unmask has the names of today"


def test_files_of_the_first_version_have_the_values_that_are_written_in_them():
    """Not compared with another file, which might have lost the same."""

    def made(name):
        scope, text, _, _ = FILES[name]
        return compose(scope, tomllib.loads(text))

    multi, qa, gru, bert = made("multi"), made("qa"), made("gru"), made("bert")
    assert (multi.loop.batch_size, multi.tokenizer.max_length, multi.model.frozen) == (8, 64, 1)
    assert (multi.optimizer.layer_decay, multi.optimizer.head_factor) == (0.9, 5.0)
    assert (multi.evaluate.patience, multi.evaluate.times) == (2, 5)
    assert (multi.loop.micro_batch_tokens, multi.loop.keep_checkpoints, multi.data.temperature) == (
        512,
        3,
        0.3,
    )
    assert (multi.schedule.epochs, multi.schedule.warmup, multi.seed) == (2.0, 0.2, 3)
    assert [entry.name for entry in multi.tasks] == ["mood", "who"]
    assert (qa.loop.batch_size, qa.tokenizer.max_length, qa.schedule.epochs) == (16, 384, 2.0)
    assert (gru.model.decoder.feeds, gru.tokenizer.size, gru.loop.batch_size) == ("both", 6000, 64)
    assert [phase.length for phase in bert.schedule.phases] == [128, 512]
    assert bert.data.held_out == 50


# One setting for each name that moved: its job, the old name, the new one, a value.
MOVES = {
    "examples": (PRETRAIN, "examples.held_out", "data.held_out", 7),
    "vocabulary": (TRANSLATE, "vocabulary.size", "tokenizer.size", 70),
    "decoder": (TRANSLATE, "decoder.max_length", "model.decoder.max_length", 70),
    "phases": (PRETRAIN, "phases", "schedule.phases", [{"length": 32, "batch_tokens": 64}]),
    "temperature": (MULTI_TASK, "temperature", "data.temperature", 0.25),
    "train": (FINETUNE, "train.log_steps", "loop.log_steps", 7),
    "optimizer.rate": (FINETUNE, "optimizer.rate", "optimizer.learning_rate", 0.5),
    "optimizer.decay": (FINETUNE, "optimizer.decay", "optimizer.weight_decay", 0.5),
    "optimizer.clip": (PRETRAIN, "optimizer.clip", "optimizer.max_grad_norm", 0.5),
    "loop.micro_tokens": (FINETUNE, "loop.micro_tokens", "loop.micro_batch_tokens", 7),
    "loop.ahead": (PRETRAIN, "loop.ahead", "loop.prefetch", "on"),
    "loop.average": (PRETRAIN, "loop.average", "loop.weight_average", 0.5),
    "loop.keep": (MULTI_TASK, "loop.keep", "loop.keep_checkpoints", 7),
    "loop.bad_steps": (FINETUNE, "loop.bad_steps", "loop.max_skipped_steps", 7),
    "train.evaluations": (FINETUNE, "train.evaluations", "evaluate.times", 7),
    "train.eval_tokens": (PRETRAIN, "train.eval_tokens", "evaluate.tokens", 7),
    "tune.batch": (FINETUNE, "tune.batch", "loop.batch_size", 7),
    "tune.epochs": (FINETUNE, "tune.epochs", "schedule.epochs", 7.0),
    "tune.length": (FINETUNE, "tune.length", "tokenizer.max_length", 70),
    "tune.frozen": (MULTI_TASK, "tune.frozen", "model.frozen", -1),
    "tune.layers": (FINETUNE, "tune.layers", "model.head_layers", [-1, -2]),
    "tune.layer_decay": (TRANSLATE, "tune.layer_decay", "optimizer.layer_decay", 0.7),
    "tune.head_factor": (FINETUNE, "tune.head_factor", "optimizer.head_factor", 7.0),
    "tune.patience": (MULTI_TASK, "tune.patience", "evaluate.patience", 7),
}


def test_every_name_that_moved_is_tried():
    muon = {"optimizer.factor"}  # only read if optimizer.kind is muon
    assert MOVES.keys() | muon == MOVED.keys()
    for moved, (_, old, new, _) in MOVES.items():
        assert old == moved or old.startswith(f"{moved}.")
        assert new == MOVED[moved] + old.removeprefix(moved)


def value_of(made: Recipe, name: str) -> object:
    """What a recipe has by a name: `value_of(recipe, "loop.keep_checkpoints")`."""
    found = made.model_dump(exclude_none=True)
    for part in name.split("."):
        found = found[part]
    return found


@pytest.mark.parametrize("moved", MOVES)
def test_a_name_that_moved_is_accepted_in_a_file_and_the_new_one_is_told(moved, tmp_path):
    scope, old, new, value = MOVES[moved]
    least, heard = LEAST[scope.job], {old: Heard(), new: Heard()}
    made = {}
    for name in (old, new):
        path = tmp_path / f"{name}.toml"
        path.write_text(write_toml(both(least, put(name, value))))
        made[name] = compose(scope, path, console=heard[name])
    assert made[old] == made[new] != compose(scope, least)
    _same(value_of(made[old], new), value)
    told = old if old.startswith("train.") else moved  # a notice names whole tables, except train
    now = new if old.startswith("train.") else MOVED[moved]
    assert heard[old].said == [f"notice: the setting {told} is now called {now}"]
    assert heard[new].said == []


@pytest.mark.parametrize("moved", MOVES)
def test_a_name_that_moved_is_accepted_in_set_and_the_new_one_is_told(moved):
    scope, old, new, value = MOVES[moved]
    least, heard = LEAST[scope.job], {old: Heard(), new: Heard()}
    written = "[{length = 32, batch_tokens = 64}]" if moved == "phases" else json.dumps(value)
    made = {
        name: compose(scope, least, [f"{name}={written}"], console=heard[name])
        for name in (old, new)
    }
    assert made[old] == made[new] != compose(scope, least)
    _same(value_of(made[old], new), value)
    assert heard[old].said == [f"notice: the setting {old} is now called {new}"]
    assert heard[new].said == []


def _same(found: object, given: object) -> None:
    assert found == given or found == [{"share": 1.0, **part} for part in given]


def test_a_place_in_a_list_that_moved_can_be_set():
    heard = Heard()
    made = compose(PRETRAIN, "bert", ["phases.1.length=256"], console=heard)
    assert [phase.length for phase in made.schedule.phases] == [128, 256]
    assert heard.said == [
        "notice: the setting phases.1.length is now called schedule.phases.1.length"
    ]


def test_old_lengths_are_replaced_too():
    """An old file has epochs in [tune]; a run has one length."""
    made = compose(FINETUNE, tomllib.loads(QA), ["schedule.steps=5"])
    assert (made.schedule.steps, made.schedule.epochs) == (5, None)
    made = compose(FINETUNE, {"task": {"name": "qa"}, "schedule": {"minutes": 2.0}})
    assert (made.schedule.minutes, made.schedule.epochs) == (2.0, None)


# What a run stores

FULL = {  # recipes with objective and task settings of their own
    "pretrain": (
        PRETRAIN,
        {
            "seed": 5,
            "model": {"size": "tiny", "positions": "t5", "reach": 64, "window": 9},
            "data": {"pairs": "sop", "copies": 2},
            "objective": {"name": "mlm", "mask_rate": 0.3, "final_mask_rate": 0.1},
            "optimizer": {"kind": "muon", "momentum": 0.9, "muon_factor": 2.0, "epsilon": 1e-9},
            "schedule": {
                "minutes": 1.5,
                "phases": [
                    {"share": 0.25, "length": 32},
                    {"share": 0.75, "length": 64, "batch_tokens": 640},
                ],
            },
            "loop": {"save_steps": 3, "weight_average": 0.1, "prefetch": "off"},
            "evaluate": {"times": 3, "tokens": 99},
        },
    ),
    "finetune": (
        FINETUNE,
        {
            "task": {"name": "qa", "stride": 17},
            "model": {"frozen": -1, "head_layers": [-1, -2]},
            "tokenizer": {"max_length": 40},
            "schedule": {"steps": 9, "kind": "cosine"},
        },
    ),
    "finetune multi": (
        MULTI_TASK,
        {
            "tasks": [
                {**TASKS[0], "task": {"name": "classify", "balance": "labels"}, "label": "x y"},
                {**TASKS[1], "text": 'a "quoted" name'},
            ],
            "data": {"temperature": 0.0},
            "optimizer": {"layer_decay": 0.9},
        },
    ),
    "translate": (
        TRANSLATE,
        {
            "model": {"width": 32, "layers": 1, "heads": 1, "inner_width": 32, "cell": "gru"},
            "task": {
                "label_smoothing": 0.2,
                "teacher_forcing": 0.5,
                "search": {"beam_size": 3, "length_penalty": 0.5},
            },
            "tokenizer": {"size": 60, "joint": False, "cased": True},
            "schedule": {"epochs": 0.5},
        },
    ),
}
FULL["translate"][1]["model"] |= {"positions": "none", "decoder": {"feeds": "word"}}


@pytest.mark.parametrize("job", FULL)
def test_a_stored_recipe_is_the_recipe(job, tmp_path):
    scope, given = FULL[job]
    made, heard = compose(scope, given), Heard()
    path = tmp_path / "recipe.toml"
    path.write_text(write_toml(scope.table(made)))
    found = compose(scope, read_toml(path), stored=True, console=heard)
    assert found == made
    assert scope.table(found) == scope.table(made)
    assert heard.said == [], "nothing in it is unread or old"
    again = compose(scope, path, console=heard)  # as a user may give it
    assert again == made
    assert heard.said == []


def test_the_settings_of_objectives_and_tasks_are_stored_whole():
    pre, tuned, several, translated = (
        scope.table(compose(scope, given)) for scope, given in FULL.values()
    )
    assert pre["objective"]["final_mask_rate"] == 0.1
    assert set(pre["objective"]) == {"name", *MaskSettings.model_fields}
    assert tuned["task"]["stride"] == 17
    assert set(tuned["task"]) >= {"name"} | {
        name for name, field in QaSettings.model_fields.items() if field.default is not None
    }
    assert several["tasks"][0]["task"]["balance"] == "labels"
    assert translated["task"]["search"]["beam_size"] == 3
    assert translated["task"]["teacher_forcing"] == 0.5


def test_the_settings_of_objectives_and_tasks_are_typed():
    pre, tuned, several, translated = (compose(scope, given) for scope, given in FULL.values())
    assert pre.objective.settings == MaskSettings(mask_rate=0.3, final_mask_rate=0.1)
    assert tuned.task.settings == QaSettings(stride=17)
    assert several.tasks[0].task.settings == ClassifySettings(balance="labels")
    assert isinstance(translated.task.settings, TranslateSettings)


def old_names(stored: dict) -> dict:
    """A stored recipe as the first version wrote it: its names, and no setting left open."""
    given = json.loads(json.dumps(stored))
    shape = {"size", "width", "layers", "heads", "inner_width", "max_length"}
    given["model"] = {name: given["model"][name] for name in shape}
    given["objective"] = {"name": "mlm"}
    given["optimizer"] |= {"momentum": 0.95, "muon_factor": 1.0}
    given["examples"] = given.pop("data")
    given["phases"] = given["schedule"].pop("phases")
    given["train"] = given.pop("loop")
    del given["train"]["micro_batches"]
    evaluate = given.pop("evaluate")
    given["train"] |= {"evaluations": evaluate["times"], "eval_tokens": evaluate["tokens"]}
    return given


def test_a_run_of_the_first_version_is_resumed(corpus, tmp_path):
    """Its recipe has other names, settings that are not read any more, and leaves others out."""
    given = table(schedule={"steps": 2}, evaluate={"times": 1}, loop={"save_steps": 1})
    out, said = tmp_path / "run", []
    pretrain(corpus.path, out, given)
    path = out / "recipe.toml"
    path.write_text(write_toml(old_names(read_toml(path))))
    pretrain(corpus.path, out, None, resume=True, said=said)
    assert "resuming from step 2" in said
    assert said[0].endswith("does not read: optimizer.momentum, optimizer.muon_factor")
    said.clear()
    pretrain(corpus.path, out, given, resume=True, said=said)
    assert "resuming from step 2" in said
    other = {**given, "optimizer": {"learning_rate": 2e-3}}
    with pytest.raises(
        FolderError, match=r"other settings: optimizer.learning_rate \(was 0.001, is now 0.0"
    ):
        pretrain(corpus.path, out, other, resume=True)
