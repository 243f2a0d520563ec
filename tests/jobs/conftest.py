"""Jobs are run in the same small way as the loop, with the fixtures of its tests."""

from tests.train.conftest import clock, corpus, run

__all__ = ["clock", "corpus", "run"]
