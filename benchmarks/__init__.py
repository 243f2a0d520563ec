"""Measurements for docs/results.md; a comparison runs both sides in turn, in the same rounds."""
