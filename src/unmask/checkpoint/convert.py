"""A BERT folder of any age -> a model folder of unmask: old names, pickles, other precisions."""

import tempfile
from pathlib import Path

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.pickled import unpickle
from unmask.checkpoint.weights import INDEX, PICKLED, WEIGHTS
from unmask.system.disk import check_output_folder, sha256_of_file
from unmask.system.errors import FolderError


def convert(source: Path, target: Path) -> None:
    """Load a folder, in a child process if its weights are only a pickle, and write a new one."""
    check_output_folder(target, renamed=True)
    weight_files = [path for name in (WEIGHTS, INDEX, PICKLED) if (path := source / name).exists()]
    if weight_files != [source / PICKLED]:
        folder = load_folder(source)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            unpickled = Path(scratch) / WEIGHTS
            unpickle(source / PICKLED, unpickled)
            try:
                folder = load_folder(source, unpickled)
            except FolderError as error:  # name the user's file, not the temporary one
                message = str(error).replace(str(unpickled), str(source / PICKLED))
                raise FolderError(message) from None
    provenance = {
        "converted from": source.resolve().name,
        weight_files[0].name: sha256_of_file(weight_files[0]),
    }
    tokenizer = folder.needed_tokenizer()
    save_folder(target, folder.network, tokenizer, provenance=provenance, target=folder.target)
