"""What a user asks: one pydantic model for each task, from which all ways to ask are made.

Lines and tables of `unmask predict`, the server's schema, the form on the page and what `unmask
info` prints come from the fields of an Ask.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from unmask.data.labelled.columns import Columns, flag
from unmask.data.labelled.tables import TABLES, read_rows
from unmask.data.read.lines import ErrorPolicy, file_format, require_unicode
from unmask.system.errors import DataError, SettingsError, unknown_name
from unmask.system.settings import parse_json
from unmask.text.tokenizer import whole_characters

TEXT = "A warm, funny and moving film."  # to try a model with
NEEDED = {"string_type": "need a text. Add it"}  # where pydantic speaks of types
TYPES = {  # of JSON's schema, in words
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
}
EXAMPLES = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
Text = Annotated[str, AfterValidator(whole_characters)]  # half a character cannot be sent back


class Ask(BaseModel):
    """A question; nothing in it is ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Fields that say how to answer, not what is asked: questions that agree in them go together.
    options: ClassVar[frozenset[str]] = frozenset()
    truths: ClassVar[Sequence[str]] = ("label",)  # columns of labelled data that hold the answer

    def chosen(self) -> tuple[tuple[str, object], ...]:
        """The options, for comparison."""
        return tuple((name, getattr(self, name)) for name in sorted(self.options))

    @classmethod
    def needed(cls) -> list[str]:
        """The fields that a question must have."""
        return [name for name, field in cls.model_fields.items() if field.is_required()]

    @classmethod
    def check_columns(cls, columns: Columns, *, labelled: bool) -> None:
        """Refuse columns of fields that are not in a question, or not in labelled data."""
        fields = [*cls.model_fields]
        if labelled:  # no truth depends on the options
            fields = [*(name for name in fields if name not in cls.options), *cls.truths]
        for name in columns.given():
            if name not in fields:
                raise SettingsError(f"{flag(name)}: {unknown_name('field', name, fields)}")

    @classmethod
    def described(cls) -> dict[str, str]:
        """Each field in words: its type, its default and what it means."""
        schemas: dict[str, dict[str, object]] = cls.model_json_schema()["properties"]
        found: dict[str, str] = {}
        for name, field in cls.model_fields.items():
            value: object = field.default
            default = "required" if field.is_required() else f"default {value}"
            default = "optional" if value is None else default
            words = f"{_type_of(schemas[name])}, {default}. {field.description or ''}"
            found[name] = words.strip()
        return found

    @classmethod
    def example(cls) -> dict[str, object]:
        """A question, with the fields that are needed or have an example."""
        schemas: dict[str, dict[str, object]] = cls.model_json_schema()["properties"]
        found: dict[str, object] = {}
        for name, field in cls.model_fields.items():
            if field.examples:
                found[name] = field.examples[0]
            elif field.is_required():
                found[name] = EXAMPLES.get(str(schemas[name].get("type")), "...")
        return found

    @classmethod
    def of_line(cls, line: str, where: str, columns: Columns = Columns()) -> Self:
        """A line as a question: a JSON object, or a text that is all there is."""
        needed = cls.needed()
        if line.lstrip().startswith("{"):
            return cls.of_table(parse_json(line, where=where, kind=DataError), where, columns)
        if len(needed) == 1:  # a blank line is an empty text
            return cls.model_validate({needed[0]: require_unicode(line, where)})
        found = f"'{line:.40}' is no JSON object" if line.strip() else "the line is blank"
        raise DataError(f"{where}: {found}; need a JSON object with {' and '.join(needed)}.")

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str, columns: Columns = Columns()) -> Self:
        """An object or a row of a table as a question; other keys are not read."""
        keys = {name: columns.given().get(name, name) for name in cls.model_fields}
        given: dict[str, object] = {
            name: table[key] for name, key in keys.items() if table.get(key) is not None
        }
        for name in cls.needed():
            value = given.get(name)
            if name not in given or (isinstance(value, str) and not value.strip()):
                shown = table.get(keys[name])
                found = f"'{keys[name]}' is {shown!r:.60}"
                fields = "" if shown is not None else f" {cls._fields()}"
                raise DataError(f"{where}: {found}; need a text. Add it.{fields}")
        for name, value in given.items():
            if isinstance(value, str):
                given[name] = require_unicode(value, where)
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            need = NEEDED.get(first["type"]) or str(first["msg"])
            need = need[0].lower() + need[1:].removesuffix(".")
            got = repr(first.get("input"))
            raise DataError(f"{where}: '{keys.get(name, name)}' is {got[:60]}; {need}.") from None

    @classmethod
    def _fields(cls) -> str:
        """What a question has, in words."""
        needed = cls.needed()
        names = [name if name in needed else f"{name} (optional)" for name in cls.model_fields]
        return f"The fields are {', '.join(names)}; --column FIELD=COLUMN renames one."


def _type_of(schema: Mapping[str, object]) -> str:
    """The type of a field in words, with its bounds."""
    union = schema.get("anyOf")
    if isinstance(union, list):
        types = dict.fromkeys(_type_of(part) for part in union if part.get("type") != "null")
        return " or ".join(types)
    choices = schema.get("enum")
    if isinstance(choices, list):
        return f"one of {', '.join(map(str, choices))}"
    low, high = (schema.get(name) for name in ("minimum", "maximum"))
    bounds = f" from {low}" if low is not None else ""
    bounds += f" up to {high}" if high is not None else ""
    return TYPES.get(str(schema.get("type")), "object") + bounds


A = TypeVar("A", bound=Ask)


def rows(
    kind: type[A], source: str | Path, columns: Columns, watcher: ErrorPolicy
) -> Iterator[tuple[A, str]]:
    """The rows of a table as questions, with their places."""
    objects = file_format(source, TABLES) == ".jsonl"  # each has keys of its own, in no order

    def choose(names: Sequence[str]) -> list[str]:
        nonlocal columns
        columns = columns if objects else columns.among(names)
        keys = {columns.given().get(name, name) for name in kind.model_fields}
        return [name for name in names if name in keys]

    for row in read_rows(source, choose, header=columns.header is not False, watcher=watcher):
        try:
            yield kind.of_table(row.cells, row.where, columns), row.where
        except DataError as error:
            watcher.bad(error, row.raw)


class AskText(Ask):
    """A text, or a pair of texts."""

    text: Annotated[Text, Field(description="The text, or the first of a pair.", examples=[TEXT])]
    second: Annotated[
        Text | None, Field(title="Second text", description="The second text of a pair.")
    ] = None
