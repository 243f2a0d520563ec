"""Text files -> tokens -> examples -> batches of packed rows."""
