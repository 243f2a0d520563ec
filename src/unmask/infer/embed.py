"""Texts -> vectors: hidden states of one layer, or of the last four concatenated, pooled."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from unmask.data.batch import pack_and_collate
from unmask.infer import POOLS, Pool
from unmask.infer.engine import run_in_order
from unmask.infer.pooling import first_of_texts, mean_of_texts
from unmask.system.errors import SettingsError, unknown_name
from unmask.tasks.forward import Forward, LiveForward
from unmask.text.tokenizer import Encoded

Layer = int | Literal["last4"]
Vector = NDArray[np.float32]


class EmbedOptions(TypedDict, total=False):
    """How hidden states become the vector of a text."""

    pool: Pool  # "mean" over all tokens, or the state of [CLS]
    layer: Layer  # 0 is the embeddings, -1 the last block; "last4" concatenates four
    normalize: bool  # to unit length
    truncate: bool  # cut the end of a text that is too long; otherwise it is an error


DEFAULTS: EmbedOptions = {"pool": "mean", "layer": -1, "normalize": True, "truncate": True}


def pooled_vectors(
    examples: Iterable[Encoded],
    live: LiveForward,
    forward: Forward,
    pad_id: int,
    options: EmbedOptions,
) -> Iterator[Vector]:
    """Yield one vector per example, in order.

    The last layer is computed by `forward`, which may be compiled; other layers by `live`.
    """
    pool, layers = options["pool"], live.network.config.layers
    if pool not in POOLS:
        raise SettingsError(unknown_name("pool", pool, POOLS))
    chosen = _layers(options["layer"], layers)
    pooled = mean_of_texts if pool == "mean" else first_of_texts

    def read(examples_of_batch: list[Encoded]) -> Sequence[Vector]:
        batch = pack_and_collate(examples_of_batch, pad_id=pad_id)
        # A compiled graph returns the last layer only.
        if chosen == [layers]:
            states = [forward.last(batch)]
        else:
            trace = live.states(batch)
            states = [trace[i] for i in chosen]
        vectors = torch.cat([pooled(layer, batch) for layer in states], dim=-1)  # [N, D or 4D]
        if options["normalize"]:
            vectors = F.normalize(vectors, dim=-1)
        return list(vectors.float().cpu().numpy())

    return run_in_order(examples, read, workers=forward.workers)


def width_of(options: EmbedOptions, width: int) -> int:
    """Return the size of the vectors of a network with hidden states of this width."""
    return 4 * width if options.get("layer") == "last4" else width


def _layers(layer: Layer, layers: int) -> list[int]:
    if layer == "last4":
        if layers < 4:
            raise SettingsError(f"layer 'last4': the model has {layers} layers; need at least 4.")
        return list(range(layers - 3, layers + 1))
    if not isinstance(layer, int) or not -layers - 1 <= layer <= layers:
        raise SettingsError(
            f"layer {layer!r}: the model has {layers} layers; need 0 (the embeddings) to "
            f"{layers}, -1 to {-layers - 1} from the end, or 'last4'."
        )
    return [layer % (layers + 1)]  # there are layers + 1 states: the embeddings count, too
