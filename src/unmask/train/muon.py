"""Muon: a step in which all directions of a matrix count the same (Jordan et al. 2024).

The momentum of a weight matrix is replaced by the nearest matrix with orthogonal rows or columns,
found by a few matrix products. Tables, biases and norms stay with AdamW. Steps are scaled to be as
long as AdamW's usually are (Liu et al. 2025), so that one rate serves both.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

ROUNDS = 5
FIRST, SECOND, THIRD = 3.4445, -4.7750, 2.0315  # of a polynomial that draws lengths towards one
LENGTH = 0.2  # of AdamW's steps, the root of the mean square


class Muon(torch.optim.AdamW):
    """AdamW for most parameters, orthogonal steps for the matrices of the last group.

    That group also has `momentum`, `factor`, and `parts`: how many matrices lie in each, only to
    save a product; they are turned each for itself.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move the matrices here, and the rest as AdamW does."""
        groups = self.param_groups
        try:
            self.param_groups = groups[:-1]
            super().step(closure)
        finally:
            self.param_groups = groups
        self._turn(groups[-1])

    def _turn(self, group: dict[str, Any]) -> None:
        alike: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for matrix, parts in zip(group["params"], group["parts"], strict=True):
            if matrix.grad is None:
                continue
            state = self.state[matrix]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(matrix)
            state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
            ahead = matrix.grad.lerp(state["momentum"], group["momentum"])
            for part, direction in zip(matrix.chunk(parts), ahead.chunk(parts), strict=True):
                alike[tuple(part.shape)].append((part, direction))
        for shape, pairs in alike.items():
            turned = orthogonal(torch.stack([direction for _, direction in pairs]))
            rate = group["lr"] * group["factor"]
            length = LENGTH * max(shape) ** 0.5 * rate
            for (part, _), direction in zip(pairs, turned, strict=True):
                part.mul_(1 - rate * group["weight_decay"]).sub_(direction, alpha=length)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices with the same directions, whose lengths are all near one.  [N, I, J] -> [N, I, J]"""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.transpose(1, 2)
        x = FIRST * x + torch.baddbmm(square, square, square, beta=SECOND, alpha=THIRD) @ x
    return x.transpose(1, 2) if tall else x
