"""Faster implementations of a few operations, for training on a CPU and for int8 inference."""
