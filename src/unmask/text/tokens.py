"""How the texts of a model become tokens, on both of its sides."""

from dataclasses import dataclass

from unmask.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of what a model reads, and of what its decoder says if it has one."""

    source: Tokenizer
    max_length: int  # tokens of a text
    target: Tokenizer | None = None

    def digest(self) -> str:
        """The sha256 of all tokenizers."""
        return self.source.digest() + (self.target.digest() if self.target else "")
