"""Measurements for docs/results.md, each against its peer, interleaved in one run."""
