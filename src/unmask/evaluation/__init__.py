"""A trained network -> scores on held-out data."""
