"""Faster operations, for training on a CPU and for int8 inference, and memory that is reused."""
