"""BERT, whole: from raw text to a trained, inspected and served model.

    text -> tokens -> examples -> batches -> hidden -> loss -> weights -> checkpoint -> answers

>>> import unmask
>>> model = unmask.load("minilm")  # doctest: +SKIP
>>> model.embed(["a text", "another"])  # doctest: +SKIP

The folders of this package are the arrows of that line; docs/architecture.md has the map.
"""

from typing import TYPE_CHECKING

from unmask.version import VERSION as __version__

if TYPE_CHECKING:
    from pathlib import Path

    from unmask.use.model import Model

__all__ = ["__version__", "load"]


def load(model: "str | Path") -> "Model":
    """Read a model folder, or a model that `unmask get` has fetched, by its name."""
    from unmask.use.model import Model  # torch is imported only when it is needed

    return Model.load(model)
