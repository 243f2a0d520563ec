"""Text -> tokens: vocabulary, WordPiece (fast, and a plain one to read), learning a vocabulary."""

from typing import Literal, get_args

Criterion = Literal["frequency", "likelihood"]
CRITERIA = get_args(Criterion)  # here, where naming them needs no numpy
