"""Names of the first version that are gone or on their way out.

The first version put a training run together in two places, with two families of recipes, five
evaluators and bags of callbacks between them. One `Run` has replaced them. Names in STILL_THERE are
allowed to be where they are and nowhere else. If you remove one, move it from STILL_THERE to
GONE, and it cannot come back.

A name is written "module:Name", or "module" if the whole file goes: other modules may have a name
of the same spelling that stays.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

STILL_THERE: set[str] = set()
GONE = {
    # Putting a run together: the same steps twice, joined by records of callbacks.
    "unmask.train.course:Course",
    "unmask.train.course:Final",
    "unmask.train.finetune:How",
    "unmask.train.finetune:Plan",
    "unmask.train.finetune:_train",
    "unmask.train.finetune:carry_out",
    "unmask.train.finetune:plan_of",
    "unmask.train.heldout:Show",
    "unmask.train.multi:publish_each",
    "unmask.train.pretrain:_train",
    # Recipes beside `Recipe`, and a second way to compose them.
    "unmask.train.multi:Multi",
    "unmask.train.translation:Translation",
    "unmask.train.tuning:Common",
    "unmask.train.tuning:TuneSettings",
    "unmask.train.tuning:Tuning",
    "unmask.train.tuning:compose_tuning",
    # Entry points: each reads files, composes a recipe and loads a model for itself.
    "unmask.train.compare:train_files",
    "unmask.train.labelled",
    "unmask.train.multi:finetune_several",
    "unmask.train.translation:train_translation",
    # Reading labelled data: two functions, and two classes with the same fields.
    "unmask.train.finetune:read_data",
    "unmask.train.pairs",
    "unmask.train.pairs:PairData",
    "unmask.train.pairs:read_data",
    "unmask.train.scores:Data",
    # Making a network: three of the places that do.
    "unmask.train.finetune:with_task",
    "unmask.train.pretrain:_begun",
    "unmask.train.translation:_new",
    # The most tokens of a text, by two rules.
    "unmask.train.finetune:window_limit",
    "unmask.train.translation:_limit",
    # Sources of batches that each handle one kind of data.
    "unmask.train.multi:TurnsSource",
    "unmask.train.tuning:WindowSource",
    # Evaluation: two more classes, a second report, and a name for the task that has none.
    "unmask.train.scores:Answered",
    "unmask.train.scores:ONLY",
    "unmask.train.scores:Settled",
    "unmask.train.translation:Held",
    "unmask.train.tuned",
    # The name of a metric in a run of several tasks, for which the report had the same rule.
    "unmask.train.scores:key_of",
}
LEAVING = STILL_THERE | GONE

# The same spelling with another meaning: these stay.
OTHERS = {
    # An answer, not a recipe.
    "unmask.tasks.translate:Translation",
}


def modules() -> dict[str, Path]:
    """All modules of the package by their dotted name."""
    return {dotted(path): path for path in sorted(SOURCE.rglob("*.py"))}


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def defined(text: str) -> Iterator[str]:
    """The classes, functions and constants at the top level of a file."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


@cache
def present() -> frozenset[str]:
    """Every module, and every name that is defined in one."""
    files = modules()
    names = {f"{module}:{name}" for module in files for name in defined(files[module].read_text())}
    return frozenset(names | files.keys())


def spelling(name: str) -> str:
    return name.partition(":")[2]


def test_names_on_their_way_out_are_where_they_were_or_gone():
    found = LEAVING & present()
    assert not found - STILL_THERE, "these were gone and have come back"
    assert not STILL_THERE - found, "these are gone: move them from STILL_THERE to GONE"


def test_names_on_their_way_out_do_not_move_to_another_module():
    public = {spelling(name) for name in LEAVING if not spelling(name).startswith("_")} - {""}
    moved = {name for name in present() if spelling(name) in public} - LEAVING - OTHERS
    assert not moved, "remove these, give them another name, or list them in OTHERS if they stay"


def test_the_lists_do_not_overlap_and_others_exist():
    assert not STILL_THERE & GONE
    assert not OTHERS & LEAVING
    assert not OTHERS - present(), "these are gone: remove them from OTHERS"


def test_definitions_of_every_kind_are_found():
    text = "import a\nb = 1\nc: int = 2\ndef d(): e = 3\nasync def f(): ...\nclass G: h = 4\n"
    assert list(defined(text)) == ["b", "c", "d", "f", "G"]


def test_a_package_and_a_file_are_found_by_their_dotted_names():
    files = modules()
    assert files["unmask.train"].name == "__init__.py"
    assert files["unmask.train.loop"].name == "loop.py"
