"""Gradients -> new weights: optimizers, learning rate schedules and precision."""
