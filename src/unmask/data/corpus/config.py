"""Which kind of examples to make of a corpus: the settings of `examples.py`, which makes them."""

from typing import Annotated, Literal

from pydantic import Field

from unmask.system.settings import Settings

Pairs = Literal["nsp", "sop", "off"]


class ExampleSettings(Settings):
    """What an example is made of."""

    pairs: Pairs = "nsp"
    short_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1  # examples of a random length
    copies: Annotated[int, Field(ge=0)] = 0  # 0: new ones every epoch; k: k versions in turn
    held_out: Annotated[int, Field(ge=0)] = 50  # one document in so many is only evaluated on
