"""Muon: a step in which all directions of a matrix count the same (Jordan et al. 2024).

The momentum of a weight matrix is replaced by the nearest matrix with orthogonal rows or columns,
found by a few matrix products. Tables, biases and norms stay with AdamW. Steps are scaled to be as
long as AdamW's usually are (Liu et al. 2025), so that one rate serves both.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

ROUNDS = 5
FIRST, SECOND, THIRD = 3.4445, -4.7750, 2.0315  # of a polynomial that draws lengths towards one
LENGTH = 0.2  # of AdamW's steps, the root of the mean square


class Muon(torch.optim.AdamW):
    """AdamW for most parameters, orthogonal steps for the matrices of the last group.

    That group also has `momentum`, `factor`, and `parts`: how many matrices lie in each, only to
    save a product; they are turned each for itself.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the matrices here, and the rest as AdamW does."""
        groups = self.param_groups
        try:
            self.param_groups = groups[:-1]
            super().step(closure)
        finally:
            self.param_groups = groups
        last = groups[-1]
        self._turn(last["params"], last["parts"], last)

    def _turn(
        self, matrices: Sequence[nn.Parameter], parts: Sequence[int], group: Mapping[str, float]
    ) -> None:
        rate = group["lr"] * group["factor"]
        alike: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for matrix, count in zip(matrices, parts, strict=True):
            if matrix.grad is None:
                continue
            state: dict[str, Tensor] = self.state[matrix]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(matrix)
            state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
            ahead = matrix.grad.lerp(state["momentum"], group["momentum"])
            for part, direction in zip(matrix.chunk(count), ahead.chunk(count), strict=True):
                alike[tuple(part.shape)].append((part, direction))
        for shape, pairs in alike.items():
            turned = orthogonal(torch.stack([direction for _, direction in pairs]))
            length = LENGTH * max(shape) ** 0.5 * rate
            for (part, _), direction in zip(pairs, turned, strict=True):
                part.mul_(1 - rate * group["weight_decay"]).sub_(direction, alpha=length)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices with the same directions, whose lengths are all near one.  [N, I, J] -> [N, I, J]"""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    length: Tensor = x.norm(dim=(1, 2), keepdim=True)
    x = x / length.clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.transpose(1, 2)
        x = FIRST * x + torch.baddbmm(square, square, square, beta=SECOND, alpha=THIRD) @ x
    return x.transpose(1, 2) if tall else x
