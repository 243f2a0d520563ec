"""BERT, whole."""
