"""Hidden states -> loss, without labels: what a network can learn from text alone.

A new objective is a file here and a line below.
"""

from unmask.objectives.base import Reader
from unmask.objectives.mlm import MaskedLM
from unmask.objectives.pairs import PairOrder

OBJECTIVES: dict[str, type[Reader]] = {"mlm": MaskedLM, "pairs": PairOrder}
