"""Checkpoint -> answers: embeddings, masked tokens, predictions, translations, attention."""

from typing import Literal, get_args

Pool = Literal["mean", "cls"]
# Defined here, so that the command line can check options without importing torch.
POOLS = get_args(Pool)
ENDINGS = ".npy", ".parquet", ".jsonl"  # file formats for vectors
