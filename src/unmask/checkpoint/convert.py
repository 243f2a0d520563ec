"""A BERT folder of any age -> a model folder of ours: old names, old pickles, other precisions."""

import tempfile
from pathlib import Path

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.pickled import unpickle
from unmask.checkpoint.weights import INDEX, PICKLED, WEIGHTS
from unmask.disk import check_output_folder, digest
from unmask.errors import FolderError


def convert(source: Path, target: Path) -> None:
    """Read a folder, unpickling its weights in a child if they are all it has, and write ours."""
    check_output_folder(target, renamed=True)
    pickled = source / PICKLED
    if (source / WEIGHTS).exists() or (source / INDEX).exists() or not pickled.exists():
        folder = load_folder(source)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            unpickle(pickled, Path(scratch) / WEIGHTS)
            folder = load_folder(source, unpickled=Path(scratch) / WEIGHTS)
    if folder.tokenizer is None:
        raise FolderError(f"{source}: no vocab.txt and no tokenizer.json; put one of them there.")
    weights = next(path for path in (source / WEIGHTS, source / INDEX, pickled) if path.exists())
    provenance = {"converted from": source.resolve().name, weights.name: digest(weights)}
    save_folder(
        target, folder.network, folder.tokenizer, provenance=provenance, target=folder.target
    )
