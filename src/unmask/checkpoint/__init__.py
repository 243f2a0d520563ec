"""Weights <-> disk: model folders, the names of other BERTs, integrity, fetching, old pickles."""
