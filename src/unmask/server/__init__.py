"""Answers over HTTP: guard -> route -> batcher -> engine."""
