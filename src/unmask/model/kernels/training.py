"""Dropout, attention and token loss with fewer passes over memory, for training on a CPU.

On a CPU there is little to gain in matrix products. What can be saved is the time to draw random
numbers for dropout and to write intermediate tensors. Each function has a plain torch equivalent,
which tests compare it with. All but `self_attend` fall back to it where they are not `usable`:

    dropped         dropout(x)
    plus_dropped    x + dropout(y)
    self_attend     F.scaled_dot_product_attention(q, k, v, added, dropout_p=rate)
    token_loss      F.cross_entropy(F.linear(states, table, bias), answers, reduction="sum",
                                    label_smoothing=smoothing)

Dropout draws one byte per number, so its rate comes in steps of 1/256: 0.1 becomes 26/256. None of
these functions can be differentiated twice.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

LEVELS = 256  # values of a random byte


def usable(x: Tensor, *, training: bool = False) -> bool:
    """Whether the fast functions apply: for training on a CPU in float32.

    `training` means that the calling module is in training mode, with or without gradients.
    """
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        # A coupled step runs each batch twice, first without gradients. Both passes must draw the
        # same dropout, so both must use the same functions.
        and (training or torch.is_grad_enabled())
        # `torch.empty` here makes float32, and the functions know nothing of casts.
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def steps_of(rate: float) -> int:
    """Return how many of the 256 byte values mean that a number is dropped."""
    # Any rate above 0 drops something, and no rate drops everything, for which `_keep_scale` would
    # be infinite.
    return min(max(round(rate * LEVELS), 1), LEVELS - 1) if rate else 0


def _bytes(shape: torch.Size) -> Tensor:
    """Draw random bytes from torch's generator, so that its seed decides dropout."""
    # Eight bytes per draw of a 64-bit integer: torch's dropout spends its time on random numbers.
    count = shape.numel()
    integers = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    return integers.view(torch.uint8)[:count].view(shape)


def _keep_mask(random_bytes: Tensor, steps: int) -> Tensor:
    """Return 1.0 where a number is kept, 0.0 where it is dropped."""
    # Compare straight into floats: a boolean mask would be converted in one more pass.
    return torch.ge(random_bytes, steps, out=torch.empty(random_bytes.shape))


def _keep_scale(steps: int) -> float:
    """Return the factor of kept numbers that preserves the mean: 1 / (1 - rate)."""
    return LEVELS / (LEVELS - steps)


class _Context(FunctionCtx):
    """Context of the dropout and loss functions, with types that torch leaves open."""

    saved_tensors: tuple[Tensor, ...]
    steps: int
    smoothing: float


class _AttentionContext(Protocol):
    """Context of attention, where dropout bytes and rotation may be None."""

    scale: float
    steps: int

    @property
    def saved_tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Queries, keys, values, attention weights, dropout bytes and rotation."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors for the backward pass."""


class _PlusDropped(Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, y: Tensor, steps: int) -> Tensor:
        random_bytes = _bytes(y.shape)
        ctx.save_for_backward(random_bytes)  # bytes: a quarter of the memory of a mask in floats
        ctx.steps = steps
        # Mask, scale and residual sum in a single pass.
        return torch.addcmul(x, y, _keep_mask(random_bytes, steps), value=_keep_scale(steps))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (random_bytes,) = ctx.saved_tensors
        kept = _keep_mask(random_bytes, ctx.steps)  # a new tensor, so it may be overwritten
        return grad, kept.mul_(grad).mul_(_keep_scale(ctx.steps)), None


def dropped(x: Tensor, dropout: nn.Module) -> Tensor:
    """Apply dropout to a tensor of any shape."""
    if isinstance(dropout, nn.Dropout) and _is_active(dropout, x):
        return plus_dropped(x.new_zeros(()), x, dropout)
    out: Tensor = dropout(x)
    return out


def plus_dropped(x: Tensor, y: Tensor, dropout: nn.Module) -> Tensor:
    """Return x + dropout(y), where x has y's shape or is a scalar."""
    if isinstance(dropout, nn.Dropout) and _is_active(dropout, y):
        return _apply(_PlusDropped, x, y, steps_of(dropout.p))
    out: Tensor = x + dropout(y)
    return out


def _is_active(dropout: nn.Dropout, x: Tensor) -> bool:
    """Whether dropout is active and the fast functions apply to x."""
    return bool(dropout.p) and dropout.training and usable(x, training=True)


class _SelfAttend(Function):
    @staticmethod
    def forward(
        ctx: _AttentionContext,
        joined: Tensor,
        added: Tensor | None,
        steps: int,
        turn: Tensor | None,
    ) -> Tensor:
        b, s, _, h, d = joined.shape
        ctx.scale, ctx.steps = d**-0.5, steps
        # One copy of the joined tensor instead of one each for queries, keys and values.
        joined_qkv = joined.permute(2, 0, 3, 1, 4).contiguous()  # [3, B, H, S, d]
        if turn is not None:
            _turn(joined_qkv[:2], turn)
        q, k, v = joined_qkv.view(3, b * h, s, d).unbind()  # each [BH, S, d]
        scores = _product(q, k.transpose(1, 2), ctx.scale)  # [BH, S, S]
        if added is not None:
            scores.view(b, h, s, s).add_(added)
        # In place: a second tensor of this size would be written to memory touched for the first
        # time.
        weights = torch.softmax(scores, dim=-1, out=scores)
        if added is not None:
            # A query that may attend to nothing gets zeros. Its softmax is NaN, and zero weights
            # make its gradient zero too.
            fully_masked = added.amax(dim=-1, keepdim=True) == float("-inf")
            if bool(fully_masked.any()):
                weights.view(b, h, s, s).masked_fill_(fully_masked, 0.0)
        random_bytes = _bytes(weights.shape) if steps else None
        # Weights as they are before dropout, which the gradient of softmax needs; the bytes give
        # back the dropped ones.
        ctx.save_for_backward(q, k, v, weights, random_bytes, turn)
        # The scale of kept weights is a factor of the whole product, so it costs no pass.
        dropped_weights = (
            weights if random_bytes is None else _keep_mask(random_bytes, steps).mul_(weights)
        )
        attended = _product(dropped_weights, v, _keep_scale(steps)).view(b, h, s, d)
        return attended.transpose(1, 2).reshape(b, s, h * d)

    @staticmethod
    @once_differentiable
    def backward(ctx: _AttentionContext, grad: Tensor) -> tuple[Tensor, None, None, None]:
        q, k, v, weights, random_bytes, turn = ctx.saved_tensors
        b, s, d = len(grad), q.shape[1], q.shape[2]
        keep_scale = _keep_scale(ctx.steps)
        grad_heads = grad.view(b, s, -1, d).transpose(1, 2).reshape(q.shape)
        keep_mask = None if random_bytes is None else _keep_mask(random_bytes, ctx.steps)
        dropped_weights = weights if keep_mask is None else keep_mask * weights
        grad_weights = _product(grad_heads, v.transpose(1, 2), keep_scale)
        if keep_mask is not None:
            grad_weights.mul_(keep_mask)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        # Gradients of queries, keys and values, written into one tensor like the joined input.
        grads = torch.empty(3, *q.shape)
        _product(grad_scores, k, ctx.scale, grads[0])
        _product(grad_scores.transpose(1, 2), q, ctx.scale, grads[1])
        _product(dropped_weights.transpose(1, 2), grad_heads, keep_scale, grads[2])
        grad_qkv = grads.view(3, b, -1, s, d)
        if turn is not None:
            _turn(grad_qkv[:2], turn.conj())  # back: the inverse of a rotation is its conjugate
        return grad_qkv.permute(1, 3, 0, 2, 4).contiguous(), None, None, None


def _turn(x: Tensor, turn: Tensor) -> None:
    """Rotate pairs of channels in place.  [2, B, H, S, d], complex [B, S, d/2]"""
    # As complex numbers, a rotation is one product, without halves that are copied and stacked.
    torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turn[:, None])


def _product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return scale * a @ b in one pass.  [N, I, J], [N, J, K] -> [N, I, K]"""
    if out is None:
        out = torch.empty(len(a), a.shape[1], b.shape[2])
    # With beta = 0, `out` is not read: it may be uninitialised, even NaN.
    return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)


def self_attend(
    joined: Tensor, added: Tensor | None, rate: float, turn: Tensor | None = None
) -> Tensor:
    """Compute multi-head self-attention; `added` must not need a gradient.

    `joined` is queries, keys and values as a joint linear layer makes them. `turn` is the rotation
    of queries and keys by rotary positions, as `Positions.turn` returns it.
    [B, S, 3, H, d], [B or 1, H or 1, S, S], complex [B, S, d/2] -> [B, S, D]
    """
    return _apply(_SelfAttend, joined, added, steps_of(rate), turn)


class _TokenLoss(Function):
    @staticmethod
    def forward(
        ctx: _Context,
        states: Tensor,
        table: Tensor,
        bias: Tensor,
        labels: Tensor,
        smoothing: float,
    ) -> Tensor:
        scores = torch.addmm(bias, states, table.t())  # [N, V]
        # Softmax will overwrite the scores, so all that is needed of them is read here.
        highest = scores.amax(dim=-1)
        label_scores = scores.gather(1, labels[:, None])[:, 0]
        if smoothing:  # cross-entropy with the smoothed label is linear in the scores
            label_scores = torch.lerp(label_scores, scores.mean(dim=-1), smoothing)
        # In place, because [N, V] may be the largest tensor of a step: into new memory, softmax
        # took four times as long.
        probabilities = torch.softmax(scores, dim=-1, out=scores)
        # log sum exp = highest - log(largest share). The largest share is at least 1 / V, so its
        # logarithm is exact where that of the label's share could be -inf.
        log_sum = highest - probabilities.amax(dim=-1).log()
        ctx.save_for_backward(states, table, probabilities, labels)
        ctx.smoothing = smoothing
        return (log_sum - label_scores).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        states, table, probabilities, labels = ctx.saved_tensors
        # The gradient of the scores is `probabilities` minus the label distribution: `label_share`
        # at the label plus `other_share` everywhere. Both are subtracted from the small products
        # below, which saves a pass over [N, V] and leaves the saved tensor as it is. `grad` is also
        # applied there.
        label_share, other_share = 1.0 - ctx.smoothing, ctx.smoothing / len(table)
        grad_states = (probabilities @ table).sub_(table[labels], alpha=label_share)
        scaled = states * grad
        grad_table = probabilities.t() @ scaled
        grad_table.index_add_(0, labels, scaled, alpha=-label_share)
        grad_bias = probabilities.sum(dim=0).mul_(grad)
        grad_bias.index_add_(0, labels, grad.expand(len(labels)), alpha=-label_share)
        if other_share:
            grad_states.sub_(table.sum(dim=0), alpha=other_share)
            grad_table.sub_(scaled.sum(dim=0), alpha=other_share)
            grad_bias.sub_(grad * (other_share * len(labels)))
        return grad_states.mul_(grad), grad_table, grad_bias, None, None


def token_loss(
    states: Tensor, table: Tensor, bias: Tensor, answers: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Return the summed cross-entropy of the answers, with a token table as output weights.

    `smoothing` is label smoothing over the whole vocabulary (Szegedy et al. 2016).
    [N, D], [V, D], [V], [N] -> []
    """
    if usable(states):
        return _apply(_TokenLoss, states, table, bias, answers, smoothing)
    scores = F.linear(states, table, bias)
    return F.cross_entropy(scores, answers, reduction="sum", label_smoothing=smoothing)


def _apply(function: type[Function], *arguments: object) -> Tensor:
    out: Tensor = function.apply(*arguments)
    return out
