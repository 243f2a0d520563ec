"""Verbs in groups -> the overview that `unmask --help` prints.

The overview is laid out here, because typer groups commands only in its rich mode, and importing
rich would double the time that the help takes.
"""

from typing import Any

from typer.core import TyperGroup

COMMON_FLAGS = "Also, anywhere: --quiet, --verbose, --trace, --plugin (`unmask --help`)."
OVERVIEW_END = "`unmask VERB --help` lists the options of a verb, with an example."


class GroupedVerbs(TyperGroup):
    """A group of commands whose help lists them under headings.

    The heading of a command is its `rich_help_panel`, typer's name for that.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per heading, with the same column widths in all of them."""
        width = max(map(len, self.commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            # 6: the indent, the gap between the columns, and room that typer leaves.
            summary = command.get_short_help_str(formatter.width - 6 - width)
            sections.setdefault(heading, []).append((f"{name:<{width}}", summary))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)
