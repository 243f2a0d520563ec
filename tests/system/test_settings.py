"""JSON from strangers: bounded, strict, and with the place of the fault; tables, as TOML."""

import tomllib
from typing import Annotated, Literal

import pytest
from pydantic import Field

from unmask.system.errors import FolderError, SettingsError
from unmask.system.settings import (
    Settings,
    apply_overrides,
    parse_json,
    read_json,
    read_toml,
    validate,
    write_toml,
)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": 1, "a": 2}', "the key 'a' is given twice"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": Infinity}', "Infinity is not a JSON number"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"\xff{}", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "a list; need a JSON object"),
    ],
    ids=["twice", "nan", "infinity", "deep", "digits", "bytes", "cut", "list"],
)
def test_what_pythons_parser_lets_pass_is_refused(raw, message):
    with pytest.raises(FolderError, match=f"x.json: .*{message}"):
        parse_json(raw, where="x.json")


def test_a_file_above_the_limit_is_not_read(tmp_path):
    path = tmp_path / "c.json"
    path.write_text("{" + " " * 100 + "}")
    with pytest.raises(FolderError, match="larger than 50 bytes"):
        read_json(path, limit=50)


class Inner(Settings):
    length: int = 1


class Near(Settings):
    kind: Literal["near"] = "near"
    reach: int = 1


class Far(Settings):
    kind: Literal["far"] = "far"
    way: int | list[int] = 1


class Outer(Settings):
    name: str = ""
    inner: Inner = Inner()
    maybe: Inner | None = None
    parts: list[Inner] = []
    ends: dict[str, Annotated[Near | Far, Field(discriminator="kind")]] = {}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"nam": "x"}, "x: unknown key 'nam'; did you mean 'name'?"),
        ({"inner": {"lenght": 2}}, "x [inner]: unknown key 'lenght'; did you mean 'length'?"),
        ({"maybe": {"lenght": 2}}, "x [maybe]: unknown key 'lenght'; did you mean 'length'?"),
        ({"parts": [{}, {"lenght": 2}]}, "x [parts]: unknown key 'lenght'; did you mean 'length'?"),
        ({"inner": 5}, "x: 'inner' is 5; "),
        ({"parts": {"length": 2}}, "x: 'parts' is "),
        (
            {"ends": {"a": {"kind": "far", "wy": 2}}},
            "x [ends]: unknown key 'wy'; did you mean 'way'?",
        ),
        ({"ends": {"a": {"kind": "near", "reach": "b"}}}, "x: 'ends.a.reach' is 'b'; "),
        (
            {"ends": {"a": {"kind": "left"}}},
            "x: 'ends.a' is {'kind': 'left'}; need a kind of 'near', 'far'.",
        ),
        ({"ends": {"a": {"reach": 1}}}, "x: 'ends.a' is {'reach': 1}; need a kind."),
        ({"ends": {"a": {"kind": []}}}, "x: 'ends.a' is {'kind': []}; "),
        ({"ends": {"a": {"kind": "far", "way": [1, "b"]}}}, "x: 'ends.a.way.1' is 'b'; "),
        (
            {"ends": {"a": {"kind": "far", "way": "b"}}},
            "x: 'ends.a.way' is 'b'; input should be a valid integer; or ",
        ),
    ],
    ids=str,
)
def test_a_wrong_key_is_named_however_deep_it_is(table, says):
    with pytest.raises(SettingsError) as error:
        validate(Outer, table, where="x")
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    "table",
    [
        {"seed": 1, "rate": 1e-06, "big": 1e300, "on": True, "name": 'a "b" \\ é\n\x7f'},
        {"sizes": [1, 2], "none": []},
        {"model": {"size": "mini"}, "seed": 3},
        {"phases": [{"length": 128}, {"length": 512}], "schedule": {"steps": 5}},
    ],
    ids=lambda table: next(iter(table)),
)
def test_a_table_written_as_toml_is_read_back_the_same(table):
    assert tomllib.loads(write_toml(table)) == table


def test_what_is_none_is_left_out_of_a_file():
    assert tomllib.loads(write_toml({"a": None, "b": {"c": None, "d": 1}})) == {"b": {"d": 1}}


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("seed=3", {"seed": 3}),
        ("rate=1e-3", {"rate": 0.001}),
        ("on=true", {"on": True}),
        ("name=bert", {"name": "bert"}),
        ('name="3"', {"name": "3"}),
        ("name=", {"name": ""}),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}),
        ("model.size=mini", {"model": {"size": "mini"}}),
        ("url=a=b", {"url": "a=b"}),
        (" seed = 3 ", {"seed": 3}),
    ],
)
def test_an_assignment_sets_a_value_as_toml_writes_it(assignment, expected):
    assert apply_overrides({}, [assignment]) == expected


def test_an_assignment_replaces_one_value_and_leaves_the_rest_and_the_table_itself():
    table = {"model": {"size": "base", "layers": 3}, "phases": [{"length": 1}, {"length": 2}]}
    found = apply_overrides(table, ["model.size=mini", "phases.1.length=9"])
    assert found == {
        "model": {"size": "mini", "layers": 3},
        "phases": [{"length": 1}, {"length": 9}],
    }
    assert table["model"]["size"] == "base"
    assert table["phases"][1]["length"] == 2


@pytest.mark.parametrize(
    "assignment",
    [
        "seed",
        "=3",
        " =3",
        "seed.x=1",
        "phases.length=3",
        "phases.2.length=3",
        "phases.²=3",
        "phases.7=3",
    ],
)
def test_an_assignment_that_cannot_be_made_is_named(assignment):
    table = {"seed": 1, "phases": [{"length": 1}, {"length": 2}]}
    with pytest.raises(SettingsError, match=f"^--set {assignment}: "):
        apply_overrides(table, [assignment])


LISTS, TABLES = "[" * 4000 + "]" * 4000, ".".join(["a"] * 4000)
FEW_LISTS, FEW_TABLES = "[" * 60 + "]" * 60, ".".join(["a"] * 60)
DEEP = {
    "lists": (f"a.b={LISTS}", "a.b"),
    "tables": (f"{TABLES}=1", TABLES[:60]),
    "inline tables": ("a=" + "{b=" * 4000 + "1" + "}" * 4000, "a"),
    "few lists": (f"a.b={FEW_LISTS}", "a.b"),
    "few tables": (f"{FEW_TABLES}=1", FEW_TABLES[:60]),
}


@pytest.mark.parametrize("case", DEEP)
def test_a_value_that_is_nested_too_deep_is_refused_by_its_name(case, tmp_path):
    assignment, name = DEEP[case]
    with pytest.raises(SettingsError) as error:
        apply_overrides({}, [assignment, "seed=1"])
    assert str(error.value) == (
        f"--set {name}: nested more than 50 levels deep; no setting is. Flatten it."
    )
    path = tmp_path / "recipe.toml"
    path.write_text(assignment)
    with pytest.raises(SettingsError, match=r"recipe\.toml: nested more than 50 levels deep"):
        read_toml(path)


def test_a_value_that_is_nested_a_little_is_none_of_that():
    assert apply_overrides({}, [f"{'a.' * 20}b=[[[1]]]"])


def test_tables_inside_lists_of_tables_are_written_so_that_they_can_be_read(tmp_path):
    table = {"tasks": [{"name": "a", "task": {"name": "ner"}}, {"name": "b", "task": {"x": [1]}}]}
    path = tmp_path / "recipe.toml"
    path.write_text(write_toml(table))
    assert read_toml(path) == table
