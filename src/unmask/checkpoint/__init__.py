"""Weights <-> disk: model folders, Hugging Face's names, integrity, downloads, old pickles."""
