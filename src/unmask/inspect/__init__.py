"""What a model attends to, and why it answers as it does."""
