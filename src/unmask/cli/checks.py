"""Input files and optional packages -> errors, before torch is imported and any work begins.

The library checks all of this again where it matters. It can only do so once it has been imported,
and after the data before it has been read.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.system.errors import SettingsError

if TYPE_CHECKING:
    from unmask.train.compose import Scope
    from unmask.train.recipe import Recipe

ARROW = ".parquet", ".zst"  # files that pyarrow reads and writes
# What needs packages beyond the required ones: the packages, and the optional dependency of unmask
# that installs them.
OPTIONAL: dict[str, tuple[tuple[str, ...], str]] = {
    "--engine ray": (("ray",), "ray"),
    "--tensorboard": (("tensorboard",), "tensorboard"),
    "--search": (("optuna",), "search"),
    "scoring translations": (("sacrebleu",), "translate"),
    "unmask get hf:NAME": (("huggingface_hub",), "hub"),
    "unmask compile": (("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "unmask export": (("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "--integrated": (("captum",), "explain"),
    "unmask serve": (("fastapi", "uvicorn", "prometheus_client"), "serve"),
}


def require_optional(feature: str) -> None:
    """Raise an error unless the packages of an optional feature are installed."""
    packages, extra = OPTIONAL[feature]
    _require(feature, packages, f"'unmask[{extra}]'")


def check_inputs(paths: Iterable[str | Path]) -> None:
    """Raise an error for an input file that is missing, or that needs a missing package."""
    from unmask.data.read.lines import file_format

    for path in paths:
        file_format(path, None)
        check_format(path)


def check_format(path: str | Path) -> None:
    """Raise an error if a file of this name needs a package that is not installed."""
    if str(path).lower().endswith(ARROW):
        _require(str(path), ["pyarrow"], "pyarrow")


def check_model(name: str) -> None:
    """Raise an error unless a model of this name or path is there."""
    from unmask.checkpoint.fetch import locate
    from unmask.checkpoint.integrity import require_model_folder

    require_model_folder(locate(name))


class _Checked(Exception):
    """Ends the composition of a recipe before it imports torch."""


def check_recipe(
    scope: "Scope", source: str | Mapping[str, Any], changes: Sequence[str], *, known: bool = True
) -> None:
    """Raise an error for a wrong recipe or setting, as far as that needs no task or objective.

    Without `known`, the settings that the job reads depend on a task, and are not checked here.
    """
    from dataclasses import replace

    from unmask.train.compose import compose
    from unmask.train.recipe import Recipe

    def stop(recipe: "Recipe") -> None:
        raise _Checked

    scope = scope if known else replace(scope, reads=list(Recipe.model_fields))
    with suppress(_Checked):
        compose(scope, source, changes, check=stop)


def _require(feature: str, packages: Iterable[str], install: str) -> None:
    for package in packages:
        # Looked for and not imported: some of these packages take seconds, or import torch.
        if find_spec(package) is None:
            raise SettingsError(
                f"{feature} needs {package}, which is not installed. Run: pip install {install}"
            )
