"""The same sums in fewer passes over memory, for training on a processor.

There the matrix products leave little to gain; what is left is drawing random numbers for dropout
and writing tensors that nobody needs. Each function has a plain counterpart, to which a test holds
it, and which all but `self_attend` use themselves where the fast way is not `usable`:

    dropped         dropout(x)
    plus_dropped    x + dropout(y)
    self_attend     F.scaled_dot_product_attention(q, k, v, added, dropout_p=rate)
    token_loss      F.cross_entropy(F.linear(states, table, bias), answers, reduction="sum",
                                    label_smoothing=smoothing)

Dropout here takes a byte for each number, so its rate comes in steps of 1/256: 0.1 is 26/256. None
of them can be differentiated twice.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

LEVELS = 256  # of a random byte


def usable(x: Tensor, *, training: bool = False) -> bool:
    """In training, on a processor, in full precision; elsewhere torch has kernels of its own.

    A module in training counts, also where no gradient is wanted: a step that runs a batch twice
    must find the same numbers both times.
    """
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and (training or torch.is_grad_enabled())
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def steps_of(rate: float) -> int:
    """Of 256 bytes, how many stand for a number that is dropped."""
    return min(max(round(rate * LEVELS), 1), LEVELS - 1) if rate else 0


def _bytes(shape: torch.Size) -> Tensor:
    """Random bytes of torch's generator, eight from each draw."""
    count = shape.numel()
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.uint8)[:count].view(shape)


def _kept(chance: Tensor, steps: int) -> Tensor:
    """1.0 where a number is kept, 0.0 where it is dropped."""
    return torch.ge(chance, steps, out=torch.empty(chance.shape))


def _grown(steps: int) -> float:
    """What is kept grows by this, so that the mean stays."""
    return LEVELS / (LEVELS - steps)


class _Context(FunctionCtx):
    """What a function knows in its backward pass."""

    saved_tensors: tuple[Tensor, ...]
    steps: int
    smoothing: float


class _Reading(Protocol):
    """The same of attention, which may have neither dropout nor a turn."""

    scale: float
    steps: int

    @property
    def saved_tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Queries, keys, values, weights, the bytes of dropout, and the turn."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep them."""


class _PlusDropped(Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, y: Tensor, steps: int) -> Tensor:
        chance = _bytes(y.shape)
        ctx.save_for_backward(chance)
        ctx.steps = steps
        return torch.addcmul(x, y, _kept(chance, steps), value=_grown(steps))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (chance,) = ctx.saved_tensors
        kept = _kept(chance, ctx.steps)
        return grad, kept.mul_(grad).mul_(_grown(ctx.steps)), None


def dropped(x: Tensor, dropout: nn.Module) -> Tensor:
    """dropout(x), for any shape."""
    if isinstance(dropout, nn.Dropout) and _acts(dropout, x):
        return plus_dropped(x.new_zeros(()), x, dropout)
    out: Tensor = dropout(x)
    return out


def plus_dropped(x: Tensor, y: Tensor, dropout: nn.Module) -> Tensor:
    """x + dropout(y), where x is of y's shape, or one number."""
    if isinstance(dropout, nn.Dropout) and _acts(dropout, y):
        return _apply(_PlusDropped, x, y, steps_of(dropout.p))
    out: Tensor = x + dropout(y)
    return out


def _acts(dropout: nn.Dropout, x: Tensor) -> bool:
    """Does it drop numbers of x, and can that be done here?"""
    return bool(dropout.p) and dropout.training and usable(x, training=True)


class _SelfAttend(Function):
    @staticmethod
    def forward(
        ctx: _Reading, joined: Tensor, added: Tensor | None, steps: int, turn: Tensor | None
    ) -> Tensor:
        b, s, _, h, d = joined.shape
        ctx.scale, ctx.steps = d**-0.5, steps
        laid = joined.permute(2, 0, 3, 1, 4).contiguous()  # [3, B, H, S, d]
        if turn is not None:
            _turn(laid[:2], turn)
        q, k, v = laid.view(3, b * h, s, d).unbind()  # each [BH, S, d]
        scores = _product(q, k.transpose(1, 2), ctx.scale)  # [BH, S, S]
        if added is not None:
            scores.view(b, h, s, s).add_(added)
        weights = torch.softmax(scores, dim=-1, out=scores)
        if added is not None:
            blind = added.amax(dim=-1, keepdim=True) == float("-inf")
            if bool(blind.any()):  # who may see nothing reads zero
                weights.view(b, h, s, s).masked_fill_(blind, 0.0)
        chance = _bytes(weights.shape) if steps else None
        ctx.save_for_backward(q, k, v, weights, chance, turn)
        used = weights if chance is None else _kept(chance, steps).mul_(weights)
        mixed = _product(used, v, _grown(steps)).view(b, h, s, d)
        return mixed.transpose(1, 2).reshape(b, s, h * d)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Reading, grad: Tensor) -> tuple[Tensor, None, None, None]:
        q, k, v, weights, chance, turn = ctx.saved_tensors
        b, s, d = len(grad), q.shape[1], q.shape[2]
        grown = _grown(ctx.steps)
        g = grad.view(b, s, -1, d).transpose(1, 2).reshape(q.shape)
        kept = None if chance is None else _kept(chance, ctx.steps)
        used = weights if kept is None else kept * weights
        to_weights = _product(g, v.transpose(1, 2), grown)
        if kept is not None:
            to_weights.mul_(kept)
        to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
        out = torch.empty(3, *q.shape)
        _product(to_scores, k, ctx.scale, out[0])
        _product(to_scores.transpose(1, 2), q, ctx.scale, out[1])
        _product(used.transpose(1, 2), g, grown, out[2])
        laid = out.view(3, b, -1, s, d)
        if turn is not None:
            _turn(laid[:2], turn.conj())
        return laid.permute(1, 3, 0, 2, 4).contiguous(), None, None, None


def _turn(x: Tensor, turn: Tensor) -> None:
    """Turn pairs of channels, in place.  [2, B, H, S, d], [B, S, d/2] of complex numbers"""
    torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turn[:, None])


def _product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """scale * a @ b in one pass.  [N, I, J], [N, J, K] -> [N, I, K]"""
    if out is None:
        out = torch.empty(len(a), a.shape[1], b.shape[2])
    return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)


def self_attend(
    joined: Tensor, added: Tensor | None, rate: float, turn: Tensor | None = None
) -> Tensor:
    """Let each token read the others of its row; `added` must need no gradient.

    `joined` is queries, keys and values as one layer makes them; `turn` says how queries and keys
    are turned before they meet.
    [B, S, 3, H, d], [B or 1, H or 1, S, S], [B, S, d/2] of complex numbers -> [B, S, D]
    """
    return _apply(_SelfAttend, joined, added, steps_of(rate), turn)


class _TokenLoss(Function):
    @staticmethod
    def forward(
        ctx: _Context,
        states: Tensor,
        table: Tensor,
        bias: Tensor,
        answers: Tensor,
        smoothing: float,
    ) -> Tensor:
        scores = torch.addmm(bias, states, table.t())  # [N, V]
        highest = scores.amax(dim=-1)
        right = scores.gather(1, answers[:, None])[:, 0]
        if smoothing:  # a share of the answer is any word
            right = torch.lerp(right, scores.mean(dim=-1), smoothing)
        shares = torch.softmax(scores, dim=-1, out=scores)
        # The log of the sum of exp, by the largest share: that one is never too small for a log.
        whole = highest - shares.amax(dim=-1).log()
        ctx.save_for_backward(states, table, shares, answers)
        ctx.smoothing = smoothing
        return (whole - right).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        states, table, shares, answers = ctx.saved_tensors
        # The gradient of the scores is `shares` less one at the answer; the one is taken off after,
        # and with smoothing so is the same little from every word.
        sure, little = 1.0 - ctx.smoothing, ctx.smoothing / len(table)
        to_states = (shares @ table).sub_(table[answers], alpha=sure)
        scaled = states * grad
        to_table = shares.t() @ scaled
        to_table.index_add_(0, answers, scaled, alpha=-sure)
        to_bias = shares.sum(dim=0).mul_(grad)
        to_bias.index_add_(0, answers, grad.expand(len(answers)), alpha=-sure)
        if little:
            to_states.sub_(table.sum(dim=0), alpha=little)
            to_table.sub_(scaled.sum(dim=0), alpha=little)
            to_bias.sub_(grad * (little * len(answers)))
        return to_states.mul_(grad), to_table, to_bias, None, None


def token_loss(
    states: Tensor, table: Tensor, bias: Tensor, answers: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Summed cross-entropy of guessing the answers among all tokens, by their own vectors.

    Smoothing takes a share off each answer and spreads it over all tokens (Szegedy et al. 2016).
    [N, D], [V, D], [V], [N] -> []
    """
    if usable(states):
        return _apply(_TokenLoss, states, table, bias, answers, smoothing)
    scores = F.linear(states, table, bias)
    return F.cross_entropy(scores, answers, reduction="sum", label_smoothing=smoothing)


def _apply(function: type[Function], *arguments: object) -> Tensor:
    out: Tensor = function.apply(*arguments)
    return out
