"""BERT from raw text to a trained, inspected and served model.

    text -> tokens -> examples -> batches -> hidden states -> loss -> checkpoint -> answers

>>> import unmask
>>> model = unmask.load("minilm")  # doctest: +SKIP
>>> model.embed(["a text", "another"])  # doctest: +SKIP

docs/api.md describes everything in `__all__`. The functions print nothing: their messages and
progress go to the logger "unmask". The subpackages follow the pipeline; docs/architecture.md
describes each of them. torch is imported inside functions only, so that `import unmask` and the
command line start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from unmask.api.answers import evaluate, get, load, predict, translate
from unmask.api.finetuning import finetune
from unmask.api.publishing import compile, export, register, serve
from unmask.api.training import learn_vocabulary, prepare, pretrain
from unmask.system.errors import (
    DataError,
    FetchError,
    FolderError,
    SettingsError,
    Stopped,
    UserError,
)
from unmask.version import VERSION as __version__

if TYPE_CHECKING:
    from unmask.api.results import (
        CompiledModel,
        EvaluationResult,
        ExportedModel,
        LearnedVocabulary,
        PreparedCorpus,
    )
    from unmask.infer.attention_maps import AttentionMaps
    from unmask.infer.loaded import TextTokens, TokenPrediction
    from unmask.infer.model import Model
    from unmask.tasks.classify import Labels
    from unmask.tasks.ner import FoundEntities, FoundEntity
    from unmask.tasks.qa import Candidate, QaAnswer
    from unmask.tasks.regress import Number
    from unmask.tasks.translate import Translation

__all__ = [
    "AttentionMaps",
    "Candidate",
    "CompiledModel",
    "DataError",
    "EvaluationResult",
    "ExportedModel",
    "FetchError",
    "FolderError",
    "FoundEntities",
    "FoundEntity",
    "Labels",
    "LearnedVocabulary",
    "Model",
    "Number",
    "PreparedCorpus",
    "QaAnswer",
    "SettingsError",
    "Stopped",
    "TextTokens",
    "TokenPrediction",
    "Translation",
    "UserError",
    "__version__",
    "compile",
    "evaluate",
    "export",
    "finetune",
    "get",
    "learn_vocabulary",
    "load",
    "predict",
    "prepare",
    "pretrain",
    "register",
    "serve",
    "translate",
]

# Classes whose modules import numpy or torch, which `__getattr__` imports when they are asked for.
_LATE = {
    "AttentionMaps": "unmask.infer.attention_maps",
    "Candidate": "unmask.tasks.qa",
    "CompiledModel": "unmask.api.results",
    "EvaluationResult": "unmask.api.results",
    "ExportedModel": "unmask.api.results",
    "FoundEntities": "unmask.tasks.ner",
    "FoundEntity": "unmask.tasks.ner",
    "Labels": "unmask.tasks.classify",
    "LearnedVocabulary": "unmask.api.results",
    "Model": "unmask.infer.model",
    "Number": "unmask.tasks.regress",
    "PreparedCorpus": "unmask.api.results",
    "QaAnswer": "unmask.tasks.qa",
    "TextTokens": "unmask.infer.loaded",
    "TokenPrediction": "unmask.infer.loaded",
    "Translation": "unmask.tasks.translate",
}


def __getattr__(name: str) -> object:
    """Import a class of the API when it is first used."""
    if name not in _LATE:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    thing: object = getattr(import_module(_LATE[name]), name)
    globals()[name] = thing  # the next access does not come here
    return thing


def __dir__() -> list[str]:
    """List the names of the API, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
