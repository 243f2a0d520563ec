"""Muon (Jordan et al. 2024): momentum -> orthogonalised updates of weight matrices.

The momentum of a weight matrix is replaced by the nearest matrix with orthogonal rows or columns,
found by a few matrix products, so that all directions of the matrix move equally far. Embeddings,
biases and norms stay with AdamW. Updates are scaled to the usual size of AdamW's (Liu et al. 2025),
so that one learning rate serves both.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

ROUNDS = 5  # Newton-Schulz iterations
# Coefficients of Jordan et al.: they raise small singular values fast, and only near to 1.
FIRST, SECOND, THIRD = 3.4445, -4.7750, 2.0315
UPDATE_RMS = 0.2  # root mean square of AdamW's usual updates (Liu et al.)


class Muon(torch.optim.AdamW):
    """AdamW for most parameters, and Muon for the matrices of the last parameter group.

    That group also has `momentum`, `factor` and `parts`. A parameter may be several matrices stored
    as one (query, key and value) to save a product; `parts` is their number, and each of them is
    orthogonalised separately.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the matrices with Muon and all other parameters with AdamW."""
        groups = self.param_groups
        # AdamW updates whatever is in `param_groups`, so the matrices are hidden from it.
        try:
            self.param_groups = groups[:-1]
            super().step(closure)
        finally:
            self.param_groups = groups
        last = groups[-1]
        self._update_matrices(last["params"], last["parts"], last)

    def _update_matrices(
        self,
        matrices: Sequence[nn.Parameter],
        part_counts: Sequence[int],
        group: Mapping[str, float],
    ) -> None:
        learning_rate = group["lr"] * group["factor"]
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for matrix, count in zip(matrices, part_counts, strict=True):
            if matrix.grad is None:
                continue
            state: dict[str, Tensor] = self.state[matrix]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(matrix)
            state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
            # Nesterov momentum: the gradient is mixed in once more.
            update = matrix.grad.lerp(state["momentum"], group["momentum"])
            for part, direction in zip(matrix.chunk(count), update.chunk(count), strict=True):
                by_shape[tuple(part.shape)].append((part, direction))
        # All matrices of one shape in one batched product: they are small, and there are many.
        for shape, pairs in by_shape.items():
            orthogonalised = orthogonal(torch.stack([direction for _, direction in pairs]))
            # An orthogonal matrix has entries of root mean square max(shape) ** -0.5.
            step_size = UPDATE_RMS * max(shape) ** 0.5 * learning_rate
            for (part, _), direction in zip(pairs, orthogonalised, strict=True):
                part.mul_(1 - learning_rate * group["weight_decay"]).sub_(
                    direction, alpha=step_size
                )


def orthogonal(matrices: Tensor) -> Tensor:
    """Bring all singular values near 1, keeping the singular vectors.  [N, I, J] -> [N, I, J]"""
    # Transposed if tall: the squares below are then of the smaller side.
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    frobenius_norm: Tensor = x.norm(dim=(1, 2), keepdim=True)
    # The Frobenius norm bounds every singular value, and the iteration needs them to be at most 1.
    x = x / frobenius_norm.clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.transpose(1, 2)
        x = FIRST * x + torch.baddbmm(square, square, square, beta=SECOND, alpha=THIRD) @ x
    return x.transpose(1, 2) if tall else x
