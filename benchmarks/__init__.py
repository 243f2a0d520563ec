"""Measurements for docs/results.md, each beside its peer in one run; speed is interleaved."""
