"""Text -> tokens: vocabulary, WordPiece (fast, and a plain one to read), learning a vocabulary."""
