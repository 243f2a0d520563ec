"""Gradients -> new weights: optimizers, learning rates, precision."""
