"""Recurrent mixers against their equations, row by row and piece by piece."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.recurrent.module import LSTMState, Recurrent, RNNState
from tests.helpers.weights import distance, randomize

D, T = 6, 7
EXACT = 1e-12
KINDS: dict[str, Any] = {
    "rnn": spec.RNN(),
    "relu": spec.RNN(activation="relu"),
    "lstm": spec.LSTM(),
    "gru": spec.GRU(),
}
kinds = pytest.mark.parametrize("mixer", KINDS.values(), ids=KINDS)
directions = pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both"])


def build(mixer: Any, bidirectional: bool = False) -> Recurrent:
    part = Recurrent(mixer.replace(bidirectional=bidirectional), Place(D))
    randomize(part)
    return part.double()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fresh(part: Recurrent, batch: int) -> RNNState:
    return part.new_state(batch, 1, torch.float64, torch.device("cpu"))


def run(part: Recurrent, x: Tensor, num_tokens: Tensor | None = None) -> Tensor:
    return part(x, ForwardContext.of(x, num_tokens=num_tokens))


def follow(part: Recurrent, x: Tensor, state: RNNState, num_tokens: Tensor | None = None, read: int = 0) -> Tensor:
    """Read `x` after `read` earlier positions; the state then has read it too."""
    return part(x, ForwardContext.of(x, torch.full(x.shape[:1], read), num_tokens), state)


def assert_same(ours: RNNState, theirs: RNNState) -> None:
    assert type(ours) is type(theirs)
    for mine, other in zip(ours.vectors, theirs.vectors, strict=True):
        torch.testing.assert_close(mine, other, rtol=EXACT, atol=EXACT)


@torch.no_grad()
def defined(mixer: Any, cell: nn.RNNBase, text: Tensor, suffix: str = "") -> tuple[Tensor, tuple[Tensor, ...]]:
    """One row by the equations of the papers: its outputs, and what is remembered in the end."""
    w, u, b, c = (getattr(cell, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    h = cell_state = torch.zeros(u.shape[1], dtype=text.dtype)
    outputs = []
    for x in text:
        from_input, from_hidden = w @ x + b, u @ h + c
        match mixer:
            case spec.RNN(activation=name):
                h = getattr(torch, name)(from_input + from_hidden)
            case spec.LSTM():
                i, f, g, o = (from_input + from_hidden).chunk(4)
                cell_state = f.sigmoid() * cell_state + i.sigmoid() * g.tanh()
                h = o.sigmoid() * cell_state.tanh()
            case spec.GRU():
                (r, z, n), (hr, hz, hn) = from_input.chunk(3), from_hidden.chunk(3)
                gate = (z + hz).sigmoid()
                h = gate * h + (1 - gate) * (n + (r + hr).sigmoid() * hn).tanh()
        outputs.append(h)
    return torch.stack(outputs), (h, cell_state) if isinstance(mixer, spec.LSTM) else (h,)


@kinds
@directions
def test_the_equations_row_by_row(mixer: Any, bidirectional: bool) -> None:
    part, x = build(mixer, bidirectional), random(3, T, D)
    state = fresh(part, 3)
    y = follow(part, x, state)
    for row in range(3):
        expected, last = defined(mixer, part.cell, x[row])
        if bidirectional:
            back, first = defined(mixer, part.cell, x[row].flip(0), "_reverse")
            expected = torch.cat((expected, back.flip(0)), -1)
            last = tuple(torch.cat(pair) for pair in zip(last, first, strict=True))
        assert distance(y[row], expected) < EXACT
        for mine, theirs in zip(state.vectors, last, strict=True):
            assert distance(mine[row], theirs) < EXACT
    assert torch.equal(run(part, x), y)


@kinds
@pytest.mark.parametrize("pieces", [[1] * T, [3, 4], [4, 1, 2]], ids=str)
def test_in_pieces_as_at_once(mixer: Any, pieces: list[int]) -> None:
    part, x = build(mixer), random(2, T, D)
    last, state = fresh(part, 2), fresh(part, 2)
    whole = follow(part, x, last)
    outputs, read = [], 0
    for piece in x.split(pieces, dim=1):
        outputs.append(follow(part, piece, state, read=read))
        read += piece.shape[1]
    assert distance(torch.cat(outputs, 1), whole) < EXACT
    assert_same(state, last)


@kinds
@directions
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("shrinking", [False, True])
def test_padding_is_not_read(mixer: Any, bidirectional: bool, length: int, shrinking: bool) -> None:
    """Rows of every count, none included: what each finds, and where it stands then, is what it is alone."""
    part = build(mixer, bidirectional)
    num_tokens = torch.arange(length + 1)
    num_tokens = num_tokens.flip(0) if shrinking else num_tokens
    rows = len(num_tokens)
    after = fresh(part, rows)
    follow(part, random(rows, 3, D, seed=1), after)
    before = after.select(torch.arange(rows))
    x = random(rows, length, D)
    y = follow(part, x, after, num_tokens, read=3)
    without = run(part, x, num_tokens)
    assert y.isfinite().all() and without.isfinite().all()
    for row, count in enumerate(num_tokens.tolist()):
        here = torch.tensor([row])
        if count == 0:
            assert all(torch.equal(a[row], b[row]) for a, b in zip(after.vectors, before.vectors, strict=True))
            continue
        state = before.select(here)
        alone = follow(part, x[here, :count], state, read=3)
        assert distance(y[here, :count], alone) < EXACT
        assert_same(after.select(here), state)
        assert distance(without[here, :count], run(part, x[here, :count])) < EXACT


@kinds
def test_one_direction_does_not_see_the_future_and_two_do(mixer: Any) -> None:
    x = random(1, T, D)
    changed = torch.cat((x[:, :4], random(1, T - 4, D, seed=9)), 1)
    one, two = build(mixer), build(mixer, bidirectional=True)
    assert torch.equal(run(one, x)[:, :4], run(one, changed)[:, :4])
    seen = run(two, x)[:, :4] != run(two, changed)[:, :4]
    assert not seen[..., : D // 2].any()
    assert seen[..., D // 2 :].any()


@kinds
@directions
@pytest.mark.parametrize("padded", [False, True])
def test_every_tensor_and_every_position_gets_a_gradient(mixer: Any, bidirectional: bool, padded: bool) -> None:
    part, x = build(mixer, bidirectional), random(2, T, D).requires_grad_()
    num_tokens = torch.tensor([T, 3]) if padded else None
    state = fresh(part, 2)
    follow(part, x, state, num_tokens)
    sum((vectors.sum() for vectors in state.vectors), torch.zeros(())).backward()
    assert all(parameter.grad.any() for parameter in part.parameters())
    reached = x.grad.abs().amax(-1) > 0
    if mixer != KINDS["relu"]:  # which may cut a path
        assert reached[0].all() and reached[1, :3].all()
    assert not padded or not reached[1, 3:].any()


@kinds
@directions
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, T])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(mixer: Any, bidirectional: bool, padded: bool, length: int, dtype: torch.dtype) -> None:
    """Under autocast from either type, and in bfloat16 throughout; the state keeps its own type."""
    part, x = build(mixer, bidirectional).float(), random(2, length, D).float()
    num_tokens = torch.tensor([length, 1]) if padded else None
    context = ForwardContext.of(x, torch.zeros(2, dtype=torch.long), num_tokens)
    exact_state, *states = (part.new_state(2, 1, dtype, torch.device("cpu")) for _ in range(4))
    real = torch.ones(2, length, dtype=torch.bool) if context.valid is None else context.valid
    exact, outputs = part(x, context, exact_state)[real], []
    for sequence, state in zip((x, x.bfloat16()), states, strict=False):
        with torch.autocast("cpu", torch.bfloat16):
            assert distance(part(sequence, context)[real], exact) < 0.05
            outputs.append(part(sequence, context, state))
        outputs[-1].float().sum().backward()
    outputs.append(copy.deepcopy(part).bfloat16()(x.bfloat16(), context, states[-1]))
    assert outputs[-1].dtype == torch.bfloat16
    for y, state in zip(outputs, states, strict=True):
        assert distance(y[real], exact) < 0.05
        for vectors, expected in zip(state.vectors, exact_state.vectors, strict=True):
            assert vectors.dtype == dtype and distance(vectors, expected) < 0.05


@kinds
@directions
def test_a_state_is_one_vector_or_two_for_an_lstm(mixer: Any, bidirectional: bool) -> None:
    part = build(mixer, bidirectional)
    state = part.new_state(3, 1000, torch.float32, torch.device("cpu"))
    assert type(state) is (LSTMState if mixer.kind == "lstm" else RNNState)
    assert state.nbytes == 3 * D * 4 * len(state.vectors)
    double = fresh(part, 3)
    follow(part, random(3, 2, D), double)
    assert double.nbytes == 2 * state.nbytes  # eight bytes each


@kinds
@directions
def test_initial_weights_are_uniform_and_no_two_alike(mixer: Any, bidirectional: bool) -> None:
    wide = 64
    part = Recurrent(mixer.replace(bidirectional=bidirectional), Place(wide))
    initialize(part, spec.NormalInitialization(), 1, seed=0)
    bound = (wide / (2 if bidirectional else 1)) ** -0.5
    for name, parameter in part.named_parameters():
        assert 0.8 * bound < parameter.abs().max().item() <= bound, name
        assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.25), name
    firsts = [parameter.flatten()[0].item() for parameter in part.parameters()]
    assert len(set(firsts)) == len(firsts)


@kinds
def test_weights_may_come_after_the_module(mixer: Any) -> None:
    """Built without storage and filled with its tensors later, as a checkpoint is loaded."""
    part, x = build(mixer), random(2, T, D)
    with torch.device("meta"):
        bare = Recurrent(mixer, Place(D)).double()
    bare.load_state_dict(part.state_dict(), assign=True)
    assert torch.equal(run(bare, x), run(part, x))
