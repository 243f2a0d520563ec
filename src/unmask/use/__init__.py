"""Checkpoint -> answers: a loaded model, embeddings, hidden tokens, next sentences, attention."""

POOLS = ("mean", "cls")  # here, where naming them needs no torch
