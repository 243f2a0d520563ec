"""Batches -> hidden states and scores: encoders, decoders, heads, and what they are made of.

This package works on tensors alone; it knows neither files nor tokenizers nor training. The whole
project uses the same letters for shapes:

    B batch size   S sequence length   N chosen items   V vocabulary size   C classes
    Q queries      K keys              D width          H heads             d head width

`[]` is a scalar; `[B or 1, 1, Q, K]` broadcasts. D = H * d.
"""
