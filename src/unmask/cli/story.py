"""The verb demo."""

import typer


def add_to(app: typer.Typer) -> None:
    """Register the verb of this file."""
    app.command()(demo)


def demo() -> None:
    """Show what unmask does with real weights, in about a minute."""
    from unmask.demo import tell

    tell()
