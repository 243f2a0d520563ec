"""Network and batch -> losses: objectives of pre-training, and of generating text.

To add an objective of pre-training, add a module to this package and a line to `OBJECTIVES`. The
values are strings so that an objective is imported only when it is used.
"""

OBJECTIVES = {
    "mlm": "unmask.objectives.mlm:MaskedLM",
    "pairs": "unmask.objectives.pairs:PairOrder",
}
