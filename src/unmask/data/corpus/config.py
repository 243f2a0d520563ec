"""Settings of `examples.py`: how pre-training examples are made from a corpus."""

from typing import Annotated, Literal

from pydantic import Field

from unmask.system.settings import Settings

Pairs = Literal["nsp", "sop", "off"]


class ExampleSettings(Settings):
    """How pre-training examples are made from a corpus."""

    pairs: Pairs = "nsp"
    short_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1  # share with a random length
    copies: Annotated[int, Field(ge=0)] = 0  # 0: new draws every epoch; k: k versions in turn
    held_out: Annotated[int, Field(ge=0)] = 50  # one document in this many is held out; 0: none
