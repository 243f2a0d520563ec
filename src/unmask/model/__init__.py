"""Batches -> hidden states: config, masks, positions, attention, layers, encoder, heads.

Tensors only: nothing here knows files, tokenizers or training. Shapes use one set of letters in
the whole project:

    B batch (rows)   S sequence (a row's length)   N chosen items   V vocabulary   C classes
    Q queries        K keys                        D width          H heads        d head width

`[]` is a scalar; `[B or 1, 1, Q, K]` broadcasts. D = H * d.
"""
