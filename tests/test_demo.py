"""The demo's own sums."""

import numpy as np

from unmask.demo import attention_shares
from unmask.use.model import AttentionMaps


def test_shares_of_attention_by_hand():
    tokens = ["[CLS]", "a", "b", "[SEP]"]
    uniform = np.full((1, 1, 4, 4), 0.25, np.float32)
    # Of four tokens two are special: half. Itself: only a and b have one, 2 x 1/4 over 4 rows.
    # Neighbours: [CLS]-a, a-b, b-a, [SEP]-b, each 1/4. The rest is [CLS]-b and [SEP]-a.
    shares = attention_shares(AttentionMaps(tokens, [0, 0, 0, 0], uniform))
    np.testing.assert_allclose(shares, [[0.5, 0.125, 0.25, 0.125]])
