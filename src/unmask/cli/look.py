"""The verb `look`: attention, attribution and head statistics of a model as an HTML page."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_inputs, check_model, require_optional
from unmask.cli.progress import notice, progress
from unmask.system.devices import check_device
from unmask.system.disk import check_output_file, write_file
from unmask.system.errors import SettingsError

TEXTS = 200  # texts for the head statistics


BesideOption = Annotated[
    str | None,
    typer.Option(help="A second model, shown beside the first.", autocompletion=completion.models),
]
MuteOption = Annotated[
    list[str] | None, typer.Option(help="Ablate a head, given as LAYER.HEAD; repeatable.")
]
TextsOption = Annotated[
    str | None,
    typer.Option(help="Texts for the head statistics; by default, Python's documentation."),
]
IntegratedOption = Annotated[
    bool,
    typer.Option("--integrated", help="Add integrated gradients (pip install 'unmask[explain]')."),
]


def look(
    model: options.ModelName,
    text: Annotated[str, typer.Argument(help="The text that the model reads.")],
    second: Annotated[str | None, typer.Argument(help="A second text, for a pair.")] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("look.html"),
    beside: BesideOption = None,
    mute: MuteOption = None,
    start: Annotated[int, typer.Option(min=0, help="The first token to show.")] = 0,
    texts: TextsOption = None,
    integrated: IntegratedOption = False,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Write an HTML page with a model's attention for a text.

    It also shows how much each token contributes to the answer, and which heads the answer needs.

    Example: unmask look minilm "The bridge was gone." --out look.html
    """
    check_output_file(out)
    ablated = _heads(mute or [])
    # All of this before torch is imported.
    names = [name for name in (model, beside) if name is not None]
    for name in names:
        check_model(name)
    if texts is not None:
        check_inputs([texts])
    if integrated:
        require_optional("--integrated")
    check_device(device)
    from unmask.inspect.attribution import head_statistics
    from unmask.inspect.html import payload, self_contained

    samples = _samples(texts)
    payloads = []
    for name in names:
        loaded = options.load_model(name, device)
        with progress(f"recording the heads of {loaded.path.name}", "texts", len(samples)) as job:
            statistics = head_statistics(loaded, samples, progress=job.advance)
        notice("ablating each head in turn")
        payloads.append(
            payload(
                loaded,
                text,
                second,
                start=start,
                mute=ablated,
                each_head=True,
                integrated=integrated,
                habits=statistics,
            )
        )
    write_file(out, self_contained(payloads, f"{payloads[0]['model']}: {text[:60]}").encode())
    if as_json:
        options.print_json({"file": str(out)})
    else:
        print(f"written to {out}: open it in a browser")


def _samples(file: str | None) -> list[str]:
    """Read the first texts of a file; without one, paragraphs of Python's documentation."""
    from unmask.data.read.docstrings import read_library
    from unmask.data.read.texts import read_texts

    if file is not None:
        return [record.text for record in islice(read_texts(file), TEXTS)]
    modules = read_library("python", limit=TEXTS * 1000)
    paragraphs = (paragraph for module in modules for paragraph in module.paragraphs)
    return list(islice(paragraphs, TEXTS))


def _heads(names: list[str]) -> dict[int, list[int]]:
    """["2.3", "2.5"] -> {2: [3, 5]}"""
    heads: dict[int, list[int]] = {}
    for name in names:
        layer, dot, head = name.partition(".")
        if not (dot and layer.isdecimal() and head.isdecimal()):
            raise SettingsError(f"--mute {name}: need LAYER.HEAD, both counted from 0, as in 2.3.")
        heads.setdefault(int(layer), []).append(int(head))
    return heads
