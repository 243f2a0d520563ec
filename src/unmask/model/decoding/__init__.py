"""Decoders, and the search for the best sequence."""
