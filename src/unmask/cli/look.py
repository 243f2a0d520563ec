"""The verb `look`: attention, attribution and head statistics of a model as an HTML page."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import options
from unmask.cli.progress import notice, progress
from unmask.system.disk import check_output_file, write_file
from unmask.system.errors import SettingsError

TEXTS = 200  # texts for the head statistics


def look(
    model: options.ModelName,
    text: Annotated[str, typer.Argument(help="What it reads.")],
    second: Annotated[str | None, typer.Argument(help="A second text, for a pair.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("look.html"),
    beside: Annotated[str | None, typer.Option(help="Another model, shown at its side.")] = None,
    mute: Annotated[
        list[str] | None, typer.Option(help="A head that says nothing, as LAYER.HEAD; any number.")
    ] = None,
    start: Annotated[int, typer.Option(min=0, help="The first token that is shown.")] = 0,
    texts: Annotated[
        str | None, typer.Option(help="Texts that show what each head does; Python's, if left out.")
    ] = None,
    integrated: Annotated[
        bool, typer.Option("--integrated", help="Integrated gradients too, by captum.")
    ] = False,
) -> None:
    """Write an HTML page with a model's attention for a text.

    It also shows how much each token contributes to the answer, and which heads the answer needs.

    Example: unmask look minilm "The bridge was gone." --out look.html
    """
    check_output_file(out)
    muted = _heads(mute or [])
    from unmask.checkpoint.fetch import locate

    # Wrong names are refused before torch is imported.
    paths = [locate(name) for name in (model, beside) if name is not None]
    from unmask.data.read.docstrings import read_library
    from unmask.data.read.texts import read_texts
    from unmask.infer.model import Model
    from unmask.inspect.attribution import head_statistics
    from unmask.inspect.html import payload, self_contained

    if texts is None:
        some = [p for m in read_library("python", limit=TEXTS * 1000) for p in m.paragraphs][:TEXTS]
    else:
        some = [record.text for record in islice(read_texts(texts), TEXTS)]
    payloads = []
    for path in paths:
        loaded = Model.load(path)
        with progress(f"watching the heads of {loaded.path.name}", "texts", len(some)) as job:
            known = head_statistics(loaded, some, progress=job.advance)
        notice("muting each head in turn")
        payloads.append(
            payload(
                loaded,
                text,
                second,
                start=start,
                mute=muted,
                each_head=True,
                integrated=integrated,
                habits=known,
            )
        )
    write_file(out, self_contained(payloads, f"{payloads[0]['model']}: {text[:60]}").encode())
    print(f"written to {out}: open it in a browser")


def _heads(names: list[str]) -> dict[int, list[int]]:
    """["2.3", "2.5"] -> {2: [3, 5]}"""
    found: dict[int, list[int]] = {}
    for name in names:
        layer, dot, head = name.partition(".")
        if not (dot and layer.isdecimal() and head.isdecimal()):
            raise SettingsError(f"--mute {name}: need LAYER.HEAD, both counted from 0, like 2.3.")
        found.setdefault(int(layer), []).append(int(head))
    return found
