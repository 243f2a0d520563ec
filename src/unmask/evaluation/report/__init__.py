"""Metrics and answers of a run -> charts, warnings and an HTML report."""
