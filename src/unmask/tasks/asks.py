"""What a user asks: one pydantic model for each task, from which all ways to ask are made.

Lines and tables of `unmask predict`, the server's schema, the form on the page and the help text
come from the fields of an Ask.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from unmask.data.columns import Columns
from unmask.data.lines import Watcher, whole
from unmask.data.tables import read_rows
from unmask.errors import DataError
from unmask.settings import parse_json
from unmask.text.tokenizer import whole_characters

TEXT = "A warm, funny and moving film."  # to try a model with
NEEDED = {"string_type": "need a text. Add it"}  # where pydantic speaks of types
Text = Annotated[str, AfterValidator(whole_characters)]  # half a character cannot be sent back


class Ask(BaseModel):
    """A question; nothing in it is ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Fields that say how to answer, not what is asked: questions that agree in them go together.
    options: ClassVar[frozenset[str]] = frozenset()

    def chosen(self) -> tuple[tuple[str, object], ...]:
        """The options, for comparison."""
        return tuple((name, getattr(self, name)) for name in sorted(self.options))

    @classmethod
    def needed(cls) -> list[str]:
        """The fields that a question must have."""
        return [name for name, field in cls.model_fields.items() if field.is_required()]

    @classmethod
    def of_line(cls, line: str, where: str, columns: Columns = Columns()) -> Self:
        """A line as a question: a JSON object, or a text that is all there is."""
        needed = cls.needed()
        if line.lstrip().startswith("{"):
            return cls.of_table(parse_json(line, where=where, kind=DataError), where, columns)
        if len(needed) == 1:  # a blank line is an empty text
            return cls.model_validate({needed[0]: whole(line, where)})
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
                raise DataError(f"{where}: '{keys[name]}' is {shown!r:.60}; need a text. Add it.")
        for name, value in given.items():
            if isinstance(value, str):
                given[name] = whole(value, where)
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            need = NEEDED.get(first["type"]) or str(first["msg"])
            need = need[0].lower() + need[1:].removesuffix(".")
            got = repr(first.get("input"))
            raise DataError(f"{where}: '{keys.get(name, name)}' is {got[:60]}; {need}.") from None


A = TypeVar("A", bound=Ask)


def rows(
    kind: type[A], source: str | Path, columns: Columns, watcher: Watcher
) -> Iterator[tuple[A, str]]:
    """The rows of a table as questions, with their places."""
    keys = {columns.given().get(name, name) for name in kind.model_fields}

    def choose(names: Sequence[str]) -> list[str]:
        return [name for name in names if name in keys]

    for row in read_rows(source, choose, header=columns.header is not False, watcher=watcher):
        try:
            yield kind.of_table(row.cells, row.where, columns), row.where
        except DataError as error:
            watcher.bad(error, row.raw)


class AskText(Ask):
    """A text, or a pair of texts."""

    text: Annotated[Text, Field(description="The text.", examples=[TEXT])]
    second: Annotated[
        Text | None, Field(title="Second text", description="The other text of a pair.")
    ] = None
