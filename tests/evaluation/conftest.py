"""Evaluations of the same small runs as the tests of the loop."""

from tests.train.conftest import clock, corpus, run

__all__ = ["clock", "corpus", "run"]
