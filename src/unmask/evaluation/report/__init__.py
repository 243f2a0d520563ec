"""Metrics -> charts and an HTML report."""
