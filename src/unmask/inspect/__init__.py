"""Attention, attribution and head ablation: what a model looks at, and what its answer needs."""
