"""The tokenizers of a model: for the texts that it reads and, with a decoder, for its output."""

from dataclasses import dataclass

from unmask.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Tokenizers:
    """Tokenizer of a model's input and, if it has a decoder, of its output."""

    source: Tokenizer
    max_length: int  # tokens of an input text
    target: Tokenizer | None = None

    def digest(self) -> str:
        """Return the sha256 of each tokenizer, joined."""
        return self.source.digest() + (self.target.digest() if self.target else "")
