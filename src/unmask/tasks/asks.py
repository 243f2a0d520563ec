"""Questions that users ask a task: one pydantic model per task.

The fields of an `Ask` define every way to ask: the JSON lines and tables of `unmask predict`, the
server's schema, the form on the page, and the list that `unmask info` prints.
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
from unmask.text.tokenizer import replace_surrogates

TEXT = "A warm, funny and moving film."  # the example on the page and in `unmask info`
NEEDED = {"string_type": "expected a text"}  # instead of pydantic's message
TYPES = {  # types of JSON Schema, in words
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
}
EXAMPLES = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
Text = Annotated[str, AfterValidator(replace_surrogates)]  # a lone surrogate cannot be sent back


class Ask(BaseModel):
    """A question; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Fields that set how to answer, such as a beam width. Only questions with equal options can be
    # answered in one batch.
    options: ClassVar[frozenset[str]] = frozenset()
    truths: ClassVar[Sequence[str]] = ("label",)  # columns of labelled data with the answer

    def chosen(self) -> tuple[tuple[str, object], ...]:
        """Return the options as comparable pairs; questions with equal options share a batch."""
        return tuple((name, getattr(self, name)) for name in sorted(self.options))

    @classmethod
    def needed(cls) -> list[str]:
        """Return the names of the required fields."""
        return [name for name, field in cls.model_fields.items() if field.is_required()]

    @classmethod
    def check_columns(cls, columns: Columns, *, labelled: bool) -> None:
        """Refuse columns for fields that the question does not have.

        Labelled data has the columns of the labels instead of the options.
        """
        fields = [*cls.model_fields]
        if labelled:  # labels do not depend on the options
            fields = [*(name for name in fields if name not in cls.options), *cls.truths]
        for name in columns.by_field():
            if name not in fields:
                raise SettingsError(f"{flag(name)}: {unknown_name('field', name, fields)}")

    @classmethod
    def described(cls) -> dict[str, str]:
        """Describe each field in words: type, default and meaning."""
        schemas: dict[str, dict[str, object]] = cls.model_json_schema()["properties"]
        descriptions: dict[str, str] = {}
        for name, field in cls.model_fields.items():
            value: object = field.default
            default = "required" if field.is_required() else f"default {value}"
            default = "optional" if value is None else default
            description = f"{_type_of(schemas[name])}, {default}. {field.description or ''}"
            descriptions[name] = description.strip()
        return descriptions

    @classmethod
    def example(cls) -> dict[str, object]:
        """Return an example question with the required fields and those that have an example."""
        schemas: dict[str, dict[str, object]] = cls.model_json_schema()["properties"]
        question: dict[str, object] = {}
        for name, field in cls.model_fields.items():
            if field.examples:
                question[name] = field.examples[0]
            elif field.is_required():
                question[name] = EXAMPLES.get(str(schemas[name].get("type")), "...")
        return question

    @classmethod
    def of_line(cls, line: str, where: str, columns: Columns = Columns()) -> Self:
        """Parse one line of input: a JSON object, or plain text if only one field is required."""
        needed = cls.needed()
        # Only the first character decides. To retry invalid JSON as plain text would hide mistakes.
        if line.lstrip().startswith("{"):
            return cls.of_table(parse_json(line, where=where, kind=DataError), where, columns)
        if len(needed) == 1:  # also a blank line, so that answer n belongs to line n
            return cls.model_validate({needed[0]: require_unicode(line, where)})
        problem = f"'{line:.40}' is not a JSON object" if line.strip() else "the line is blank"
        raise DataError(f"{where}: {problem}; expected a JSON object with {' and '.join(needed)}.")

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str, columns: Columns = Columns()) -> Self:
        """Make a question from a JSON object or a table row; other keys are ignored."""
        keys = {name: columns.by_field().get(name, name) for name in cls.model_fields}
        # A null counts as a missing field, so that the default applies.
        values: dict[str, object] = {
            name: table[key] for name, key in keys.items() if table.get(key) is not None
        }
        for name in cls.needed():
            value = values.get(name)
            if name not in values or (isinstance(value, str) and not value.strip()):
                cell = table.get(keys[name])
                problem = f"'{keys[name]}' is {cell!r:.60}"
                fields = "" if cell is not None else f" {cls._list_fields()}"
                raise DataError(f"{where}: {problem}; expected a text.{fields}")
        for name, value in values.items():
            if isinstance(value, str):
                values[name] = require_unicode(value, where)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            # Pydantic reports several errors and its own names; users know the name of the column.
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            expected = NEEDED.get(first["type"]) or str(first["msg"])
            expected = expected[0].lower() + expected[1:].removesuffix(".")
            shown = repr(first.get("input"))
            raise DataError(
                f"{where}: '{keys.get(name, name)}' is {shown[:60]}; {expected}."
            ) from None

    @classmethod
    def _list_fields(cls) -> str:
        """List the fields of the question, for error messages."""
        needed = cls.needed()
        names = [name if name in needed else f"{name} (optional)" for name in cls.model_fields]
        return f"The fields are {', '.join(names)}; --column FIELD=COLUMN renames one."


def _type_of(schema: Mapping[str, object]) -> str:
    """Return the type of a field in words, with its bounds."""
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
    """Yield the rows of a table as questions, each with its place in the file."""
    objects = file_format(source, TABLES) == ".jsonl"  # every object may have other keys

    # Reading only the question's columns saves decoding the others of a parquet file.
    def choose(names: Sequence[str]) -> list[str]:
        nonlocal columns
        columns = columns if objects else columns.resolve(names)
        keys = {columns.by_field().get(name, name) for name in kind.model_fields}
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
