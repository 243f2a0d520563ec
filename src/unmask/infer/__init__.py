"""Checkpoint -> answers: a loaded model, embeddings, hidden tokens, next sentences, attention."""

from typing import Literal, get_args

Pool = Literal["mean", "cls"]
POOLS = get_args(Pool)  # here, where naming them needs no torch
ENDINGS = ".npy", ".parquet", ".jsonl"  # of files of vectors
