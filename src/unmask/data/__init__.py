"""Tokens -> examples -> batches: readers of text files, and rows that hold several texts."""
