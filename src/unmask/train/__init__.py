"""Loss -> weights: recipes, the one loop, and everything that keeps a run safe and watched."""
