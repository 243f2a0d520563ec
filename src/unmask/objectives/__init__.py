"""Hidden states -> loss: what a network can learn, from text alone or from labels.

A new objective is a file here and a line below. Nothing is imported before it is used.
"""

OBJECTIVES = {
    "mlm": "unmask.objectives.mlm:MaskedLM",
    "pairs": "unmask.objectives.pairs:PairOrder",
}
