"""A BERT folder of any age -> a model folder of ours: old names, old pickles, other precisions."""

import tempfile
from pathlib import Path

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.integrity import digest, refuse_existing
from unmask.checkpoint.pickled import unpickle
from unmask.checkpoint.weights import INDEX, PICKLED, WEIGHTS
from unmask.errors import FolderError, UserError


def convert(source: Path, target: Path) -> None:
    """Read a folder, unpickling its weights in a child if they are all it has, and write ours."""
    refuse_existing(target)
    source = source.resolve()
    pickled = source / PICKLED
    if (source / WEIGHTS).exists() or (source / INDEX).exists() or not pickled.exists():
        folder = load_folder(source)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / source.name
            copy.mkdir()
            for path in source.iterdir():
                if path.suffix in (".json", ".txt") and path.is_file():
                    (copy / path.name).symlink_to(path.resolve())
            unpickle(pickled, copy / WEIGHTS)
            try:
                folder = load_folder(copy)
            except UserError as error:  # what the copy says of itself, said of the source
                message = str(error).replace(str(copy / WEIGHTS), str(pickled))
                raise FolderError(message.replace(str(copy), str(source))) from None
    if folder.tokenizer is None:
        raise FolderError(f"{source}: no vocab.txt and no tokenizer.json; put one of them there.")
    weights = next(path for path in (source / WEIGHTS, source / INDEX, pickled) if path.exists())
    provenance = {"converted from": source.name, weights.name: digest(weights)}
    save_folder(target, folder.network, folder.tokenizer, provenance=provenance)
