"""Text -> tokens: vocabularies, WordPiece (compiled, and in plain Python), vocabulary learning."""

from typing import Literal, get_args

Criterion = Literal["frequency", "likelihood"]
CRITERIA = get_args(Criterion)  # here, so that listing them does not import numpy
