"""Loss -> weights: recipes, the training loop, exact resume, checks and checkpoints."""
