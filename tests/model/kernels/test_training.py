"""The fast functions give what their plain counterparts give, forwards and backwards."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.conftest import tiny_config
from unmask.model import positions
from unmask.model.kernels import training

RATES = [0.1, 0.5, 0.9]


def leaves(*shapes):
    """Random tensors that want gradients."""
    torch.manual_seed(0)
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def gradients(output, *inputs):
    """Of a sum with uneven weights, so that no error can cancel out."""
    weights = torch.arange(output.numel(), dtype=torch.float32).view(output.shape).cos()
    return torch.autograd.grad((output * weights).sum(), inputs, retain_graph=True)


def same(output, expected, inputs, atol=1e-5):
    torch.testing.assert_close(output, expected, atol=atol, rtol=1e-5)
    for one, other in zip(gradients(output, *inputs), gradients(expected, *inputs), strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=1e-4)


def mask(shape, rate):
    """What is kept after a seed, grown: drawn as the fast functions draw it."""
    chance = training._bytes(torch.Size(shape))
    steps = training.steps_of(rate)
    return (chance >= steps).float() * 256 / (256 - steps)


@pytest.mark.parametrize(
    ("rate", "steps"), [(0.0, 0), (0.1, 26), (0.5, 128), (1e-9, 1), (0.9999, 255)]
)
def test_a_rate_is_rounded_to_steps_of_a_byte(rate, steps):
    assert training.steps_of(rate) == steps


@pytest.mark.parametrize("rate", RATES)
def test_as_many_numbers_are_dropped_as_the_rate_says_and_the_mean_stays(rate):
    torch.manual_seed(0)
    out = training.dropped(torch.ones(1000, 1000), nn.Dropout(rate))
    share = training.steps_of(rate) / 256
    assert float((out == 0).float().mean()) == pytest.approx(share, abs=0.002)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.01)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)])


def test_which_numbers_are_dropped_does_not_depend_on_their_neighbours():
    torch.manual_seed(0)
    gone = (training.dropped(torch.ones(400, 1000), nn.Dropout(0.5)) == 0).float() - 0.5
    for shift in range(1, 17):
        assert abs(float((gone[:, shift:] * gone[:, :-shift]).mean())) < 0.002
    assert float(gone.mean(dim=0).abs().max()) < 0.15


def test_the_seed_decides_what_is_dropped():
    def drawn(seed):
        torch.manual_seed(seed)
        return training.dropped(torch.ones(64, 64), nn.Dropout(0.1))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize("rate", [0.0, *RATES])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 8, 16)])
def test_dropping_is_a_product_with_the_mask(rate, shape):
    (x,) = leaves(shape)
    torch.manual_seed(1)
    out = training.dropped(x, nn.Dropout(rate))
    torch.manual_seed(1)
    expected = x * mask(shape, rate) if rate else x * 1.0
    same(out, expected, [x])


@pytest.mark.parametrize("rate", [0.0, *RATES])
def test_adding_what_is_dropped_is_the_sum_with_the_masked(rate):
    x, y = leaves((3, 5, 7), (3, 5, 7))
    torch.manual_seed(1)
    out = training.plus_dropped(x, y, nn.Dropout(rate))
    torch.manual_seed(1)
    expected = x + y * mask(y.shape, rate) if rate else x + y
    same(out, expected, [x, y])


def barred():
    """Two texts in a row of seven: neither sees the other."""
    owner = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    return torch.zeros(7, 7).masked_fill(owner[:, None] != owner, float("-inf"))[None, None]


def apart(joined):
    return joined.permute(2, 0, 3, 1, 4).unbind(0)


@pytest.mark.parametrize("added", [None, barred()], ids=["all", "barred"])
def test_attention_without_dropout_is_torchs(added):
    (joined,) = leaves((2, 7, 3, 5, 4))
    out = training.self_attend(joined, added, 0.0)
    expected = F.scaled_dot_product_attention(*apart(joined), attn_mask=added)
    same(out, expected.transpose(1, 2).flatten(2), [joined])


@pytest.mark.parametrize("rate", RATES)
def test_attention_drops_weights_after_the_softmax(rate):
    (joined,) = leaves((2, 7, 3, 5, 4))
    torch.manual_seed(1)
    out = training.self_attend(joined, barred(), rate)
    torch.manual_seed(1)
    q, k, v = apart(joined)
    weights = (q @ k.transpose(-1, -2) / 2.0 + barred()).softmax(dim=-1)
    expected = (weights * mask(weights.shape, rate)) @ v
    same(out, expected.transpose(1, 2).flatten(2), [joined])


def test_queries_and_keys_are_turned_as_rotary_positions_do():
    where = positions.make_positions(tiny_config(positions="rotary", width=20, heads=5))
    index = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [3, 1, 4, 1, 5, 9, 2]])
    (joined,) = leaves((2, 7, 3, 5, 4))
    out = training.self_attend(joined, barred(), 0.0, where.turn(index))
    q, k, v = apart(joined)
    q, k = where.rotate(q, index), where.rotate(k, index)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=barred())
    same(out, expected.transpose(1, 2).flatten(2), [joined])


def test_the_token_loss_is_cross_entropy_of_all_scores():
    states, table, bias = leaves((9, 6), (11, 6), (11,))
    answers = torch.tensor([0, 10, 3, 3, 3, 7, 1, 0, 5])
    loss = training.token_loss(states, table, bias, answers)
    expected = F.cross_entropy(F.linear(states, table, bias), answers, reduction="sum")
    for scale in (1.0, 0.25):
        same(scale * loss, scale * expected, [states, table, bias])


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_the_token_loss_with_smoothing_is_torchs(smoothing):
    states, table, bias = leaves((9, 6), (11, 6), (11,))
    answers = torch.tensor([0, 10, 3, 3, 3, 7, 1, 0, 5])
    loss = training.token_loss(states, table, bias, answers, smoothing)
    scores = F.linear(states, table, bias)
    expected = F.cross_entropy(scores, answers, reduction="sum", label_smoothing=smoothing)
    for scale in (1.0, 0.25):
        same(scale * loss, scale * expected, [states, table, bias])


def test_smoothing_by_hand():
    """Two words with scores 0 and log 3: a tenth of the answer is either of them."""
    states, table = torch.ones(1, 1), torch.tensor([[0.0], [3.0]]).log1p()  # log 1, log 4
    loss = training.token_loss(
        states.requires_grad_(), table, torch.zeros(2), torch.tensor([1]), 0.1
    )
    sure, other = -torch.tensor(4 / 5).log(), -torch.tensor(1 / 5).log()
    torch.testing.assert_close(loss, 0.95 * sure + 0.05 * other)


def test_the_token_loss_of_an_answer_without_a_chance_is_its_distance():
    states, table, bias = torch.ones(1, 1), torch.tensor([[500.0], [-500.0]]), torch.zeros(2)
    loss = training.token_loss(states.requires_grad_(), table, bias, torch.tensor([1]))
    assert loss.item() == 1000.0


def test_no_answers_have_no_loss():
    states, table, bias = leaves((0, 6), (11, 6), (11,))
    loss = training.token_loss(states, table, bias, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0.0
    assert float(table.grad.abs().sum()) == 0.0


ANSWERS = torch.zeros(6, dtype=torch.long)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: training.dropped(x, nn.Dropout(0.1)),
        lambda x: training.plus_dropped(x, x * x, nn.Dropout(0.1)),
        lambda x: training.self_attend(x.view(1, 2, 3, 2, 2), None, 0.0),
        lambda x: training.token_loss(x.view(6, 4), torch.ones(5, 4), torch.ones(5), ANSWERS),
    ],
    ids=["dropped", "plus_dropped", "self_attend", "token_loss"],
)
def test_what_cannot_be_differentiated_twice_says_so(function):
    x = torch.arange(24.0).requires_grad_()
    (grad,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()


def test_they_are_used_on_a_processor_in_full_precision_with_gradients():
    x = torch.ones(2)
    assert training.usable(x)
    assert not training.usable(x.double())
    assert not training.usable(x.to("meta"))
    with torch.no_grad():
        assert not training.usable(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not training.usable(x)


@pytest.mark.parametrize("where", ["evaluation", "double precision"])
def test_elsewhere_they_are_torchs_own(where):
    dropout = nn.Dropout(0.5).train(where != "evaluation")
    kind = torch.float64 if where == "double precision" else torch.float32
    x, y = torch.randn(2, 3, 5, dtype=kind).unbind()
    for ours, plain in (
        (lambda: training.dropped(y, dropout), lambda: dropout(y)),
        (lambda: training.plus_dropped(x, y, dropout), lambda: x + dropout(y)),
    ):
        torch.manual_seed(1)
        found = ours()
        torch.manual_seed(1)
        assert torch.equal(found, plain())
    table, bias, answers = torch.randn(7, 5, dtype=kind), torch.randn(7, dtype=kind), ANSWERS[:3]
    with torch.no_grad():
        scores = F.linear(x, table, bias)
        expected = F.cross_entropy(scores, answers, reduction="sum", label_smoothing=0.1)
        assert torch.equal(training.token_loss(x, table, bias, answers, 0.1), expected)
