"""Text -> tokens: vocabulary, WordPiece (fast, and a plain one to read), learning a vocabulary."""

CRITERIA = ("frequency", "likelihood")  # here, where naming them needs no numpy
