"""The selective scan against its definition position by position, and Mamba against transformers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer

from archetype import spec
from archetype.errors import ArchetypeError
from archetype.families.config import Config
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.mamba.module import Mamba, MambaState
from archetype.parts.mamba.scan import scan, step
from archetype.parts.mamba2.infer import step_limits
from tests.helpers.examples import examples
from tests.helpers.weights import distance, randomize

D, EXACT = 12, 1e-12


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(batch: int, length: int, channels: int = 5, size: int = 3, seed: int = 0) -> list[Tensor]:
    """delta, v, b, c, a and the first state."""
    delta = torch.nn.functional.softplus(random(batch, length, channels, seed=seed))
    v = random(batch, length, channels, seed=seed + 1)
    b, c = (random(batch, length, size, seed=seed + n) for n in (2, 3))
    a, h = random(channels, size, seed=seed + 4), random(batch, channels, size, seed=seed + 5)
    return [delta, v, b, c, -a.exp(), h]


def defined(delta: Tensor, v: Tensor, b: Tensor, c: Tensor, a: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as it is written."""
    read = []
    for t in range(delta.shape[1]):
        h = torch.exp(delta[:, t, :, None] * a) * h + v[:, t, :, None] * b[:, t, None, :]
        read.append((h * c[:, t, None, :]).sum(-1))
    return torch.stack(read, 1), h


def gradients(of: Callable[..., tuple[Tensor, Tensor]], tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum that weighs every output differently."""
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    y, h = of(*tensors)
    weighed = (y * random(*y.shape, seed=90)).sum() + (h * random(*h.shape, seed=91)).sum()
    return torch.autograd.grad(weighed, tensors)


LENGTHS = [1, 2, 3, 4, 5, 8, 9, 10, 15, 16, 17, 31, 97, 100, 101, 257]  # around squares: the blocks are roots


@pytest.mark.parametrize("length", LENGTHS)
def test_the_scan_is_the_recurrence_and_so_are_its_gradients(length: int) -> None:
    tensors = inputs(2, length)
    for ours, theirs in zip(scan(*tensors), defined(*tensors), strict=True):
        assert distance(ours, theirs) < EXACT
    for ours, theirs in zip(gradients(scan, tensors), gradients(defined, tensors), strict=True):
        assert distance(ours, theirs) < EXACT


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
@examples(12)
def test_any_sizes(batch: int, length: int, channels: int, size: int, seed: int) -> None:
    tensors = inputs(batch, length, channels, size, seed)
    for ours, theirs in zip(scan(*tensors), defined(*tensors), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("length", [2, 7])
def test_gradients_are_those_of_small_differences(length: int) -> None:
    assert torch.autograd.gradcheck(scan, [tensor.requires_grad_() for tensor in inputs(1, length, 2, 2)])


def test_a_gradient_for_the_state_alone_reaches_all_that_wrote_it() -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(2, 10)]
    actual = torch.autograd.grad(scan(*tensors)[1].sum(), tensors)
    expected = torch.autograd.grad(defined(*tensors)[1].sum(), tensors, allow_unused=True)
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        assert (not ours.any()) if index == 3 else distance(ours, theirs) < EXACT  # c is what only reads


def test_neither_instant_nor_endless_decay_gives_anything_but_numbers() -> None:
    delta, v, b, c, a, h = (tensor.float() for tensor in inputs(1, 50))
    for scale in (0.0, 1e-30, 1e4, 1e30):
        y, last = scan(delta * scale, v, b, c, a, h)
        assert y.isfinite().all() and last.isfinite().all()
        slopes = gradients(scan, [delta * scale, v, b, c, a, h])
        assert all(slope.isfinite().all() for slope in slopes)
    forgotten = (v[:, -1, :, None] * b[:, -1, None]).squeeze(2)  # all but the last
    assert distance(last, forgotten) < 1e-6


def test_what_is_kept_for_the_gradient_grows_with_the_root_of_the_length() -> None:
    def num_saved(length: int) -> int:
        """Numbers saved beyond the inputs themselves."""
        tensors, saved = [tensor.requires_grad_() for tensor in inputs(2, length)], []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            scan(*tensors)
        return sum(saved) - sum(tensor.numel() for tensor in tensors[:4])

    state = 2 * 5 * 3
    assert num_saved(400) <= (20 + 4) * state
    assert num_saved(1600) <= (40 + 4) * state


def test_a_single_position_is_a_step() -> None:
    delta, v, b, c, a, h = inputs(2, 1)
    y, last = step(delta[:, 0], v[:, 0], b[:, 0], c[:, 0], a, h)
    assert torch.equal(scan(delta, v, b, c, a, h)[0], y[:, None])
    assert torch.equal(scan(delta, v, b, c, a, h)[1], last)


@pytest.mark.parametrize("length", [1, 6, 16])
def test_forward_multiplies_the_state_with_c_and_backward_twice_that(length: int) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(2, length)]
    once = 2 * 2 * length * 5 * 3
    with FlopCounterMode(display=False) as counted:
        total = scan(*tensors)[0].sum()
        assert counted.get_total_flops() == once
        total.backward()
    assert counted.get_total_flops() == 3 * once


# the mixer


def build(seed: int = 0, **fields: Any) -> Mamba:
    part = Mamba(spec.Mamba(**({"state_size": 3} | fields)), Place(D))
    randomize(part, seed)
    return part.double()


def run(part: Mamba, x: Tensor, num_tokens: Tensor | None = None) -> Tensor:
    return part(x, ForwardContext.of(x, num_tokens=num_tokens))


def fresh(part: Mamba, batch: int) -> MambaState:
    return part.new_state(batch, 1, torch.float64, torch.device("cpu"))


def follow(part: Mamba, x: Tensor, lengths: Tensor, state: MambaState, num_tokens: Tensor | None = None) -> Tensor:
    """Read `x` after each row's `lengths` positions; the state then has read it too."""
    return part(x, ForwardContext.of(x, lengths, num_tokens), state)


def assert_same(ours: MambaState, theirs: MambaState) -> None:
    torch.testing.assert_close(ours.conv, theirs.conv, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(ours.hidden, theirs.hidden, rtol=EXACT, atol=EXACT)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"bias": True},
    {"conv_bias": False},
    {"conv_kernel": 1},
    {"conv_kernel": 7},
    {"expand": 1, "state_size": 1, "dt_rank": 5},
    {"expand": 3, "state_size": 16},
]
variants = pytest.mark.parametrize("fields", VARIANTS, ids=str)


@variants
def test_the_same_as_transformers(fields: dict[str, Any]) -> None:
    part = build(**fields).float()
    mixer = part.spec
    config = MambaConfig(
        hidden_size=D, state_size=mixer.state_size, expand=mixer.expand, conv_kernel=mixer.conv_kernel,
        time_step_rank=mixer.rank(D), use_conv_bias=mixer.conv_bias, use_bias=mixer.bias, num_hidden_layers=1,
    )  # fmt: skip
    theirs = MambaMixer(config, layer_idx=0).eval()
    names = {name.replace("conv.", "conv1d."): tensor for name, tensor in part.state_dict().items()}
    theirs.load_state_dict(names, strict=True)
    x = random(2, 23, D).float()
    with torch.no_grad():
        assert distance(run(part, x), theirs(x)) < 1e-5


@variants
@pytest.mark.parametrize("pieces", [[11], [1] * 11, [4, 7], [7, 1, 3], [2, 9]], ids=str)
def test_in_pieces_as_at_once(fields: dict[str, Any], pieces: list[int]) -> None:
    part, x = build(**fields), random(2, 11, D)
    last, state = fresh(part, 2), fresh(part, 2)
    whole = follow(part, x, torch.zeros(2, dtype=torch.long), last)
    assert distance(whole, run(part, x)) < EXACT
    outputs, read = [], 0
    for piece in x.split(pieces, dim=1):
        outputs.append(follow(part, piece, torch.full((2,), read), state))
        read += piece.shape[1]
    assert distance(torch.cat(outputs, 1), whole) < EXACT
    assert_same(state, last)


@variants
@pytest.mark.parametrize("length", [1, 6])
def test_padding_is_not_read(fields: dict[str, Any], length: int) -> None:
    """Rows of every count: what each finds, and where it stands then, is what it is alone."""
    part = build(**fields)
    num_tokens = torch.arange(length + 1)
    rows = len(num_tokens)
    past, x = random(rows, 3, D, seed=1), random(rows, length, D)
    after = fresh(part, rows)
    follow(part, past, torch.zeros(rows, dtype=torch.long), after)
    before = after.select(torch.arange(rows))
    y = follow(part, x, torch.full((rows,), 3), after, num_tokens)
    assert y.isfinite().all()
    for row, count in enumerate(num_tokens.tolist()):
        here = torch.tensor([row])
        if count == 0:
            assert torch.equal(after.conv[row], before.conv[row])
            assert torch.equal(after.hidden[row], before.hidden[row])
            continue
        state = before.select(here)
        alone = follow(part, x[here, :count], torch.tensor([3]), state)
        assert distance(y[here, :count], alone) < EXACT
        assert_same(after.select(here), state)
        assert distance(run(part, x, num_tokens)[here, :count], run(part, x[here, :count])) < EXACT


def test_the_future_changes_nothing() -> None:
    part, x = build(), random(1, 20, D)
    before = run(part, x)
    for t in (1, 4, 13, 19):
        changed = torch.cat((x[:, :t], random(1, 20 - t, D, seed=t)), 1)
        after = run(part, changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t] != before[:, t]).any()


def test_every_tensor_and_every_earlier_position_gets_a_gradient() -> None:
    part, x = build(bias=True), random(2, 17, D).requires_grad_()
    run(part, x)[:, -1].sum().backward()
    assert all(parameter.grad.any() for parameter in part.parameters())
    assert x.grad.abs().amax(-1).min() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 9])
def test_a_state_keeps_its_type_in_lower_precision(dtype: torch.dtype, length: int) -> None:
    part, x = build().float(), random(2, length, D).float()
    with torch.no_grad():
        exact = run(part, x)
        states = [part.new_state(2, 1, dtype, torch.device("cpu")) for _ in range(2)]
        context = ForwardContext.of(x, torch.zeros(2, dtype=torch.long))
        with torch.autocast("cpu", torch.bfloat16):
            mixed = part(x, context, states[0])
        short = part.bfloat16()(x.bfloat16(), context, states[1])
    assert short.dtype == torch.bfloat16
    for y, state in zip((mixed, short), states, strict=True):
        assert distance(y, exact) < 0.05
        assert state.conv.dtype == state.hidden.dtype == dtype
        assert state.hidden.any() and (length == 1 or state.conv.all(0).any())


def test_autocast_leaves_the_scan_its_bits() -> None:
    tensors = [tensor.float() for tensor in inputs(2, 30)]
    outside, slopes = scan(*tensors), gradients(scan, tensors)
    with torch.autocast("cpu", torch.bfloat16):
        inside = scan(*tensors)
        slopes_inside = gradients(scan, tensors)
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))
    assert all(distance(a, b) < 1e-5 for a, b in zip(slopes_inside, slopes, strict=True))


def test_a_state_has_the_size_of_its_specification_whatever_the_capacity() -> None:
    part = Mamba(spec.Mamba(expand=3, state_size=7, conv_kernel=5), Place(D))
    state = part.new_state(2, 1000, torch.float32, torch.device("cpu"))
    assert state.conv.shape == (2, 36, 4)
    assert state.hidden.shape == (2, 36, 7)
    size = state.nbytes
    x = torch.zeros(2, 50, D)
    part.float()(x, ForwardContext.of(x, torch.zeros(2, dtype=torch.long)), state)
    assert state.nbytes == size == sum(t.untyped_storage().nbytes() for t in (state.conv, state.hidden))


def test_initial_steps_and_rates_are_those_of_the_paper() -> None:
    mixer = spec.Mamba(expand=64, state_size=5, dt_min=0.01, dt_max=0.5, dt_rank=9)
    part = Mamba(mixer, Place(D))
    initialize(part, spec.NormalInitialization(std=0.02), 1, seed=0)
    assert torch.equal(part.A_log, torch.arange(1.0, 6.0).log().expand(64 * D, 5))
    assert torch.equal(part.D, torch.ones(64 * D))
    steps = torch.nn.functional.softplus(part.dt_proj.bias.detach()).log()
    low, high = math.log(0.01), math.log(0.5)
    assert low - 1e-4 < steps.min() < low + 0.05 and high - 0.05 < steps.max() < high + 1e-4
    assert steps.mean().item() == pytest.approx((low + high) / 2, abs=0.15)  # uniform: standard error 0.04
    weight = part.dt_proj.weight
    assert 0.33 < weight.abs().max().item() <= 1 / 3
    assert weight.std().item() == pytest.approx(1 / 3 / math.sqrt(3), rel=0.02)
    assert part.in_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for tensor in (part.conv.weight, part.conv.bias):  # within 1 / sqrt(k), k = 4, whatever the scheme
        assert 0.49 < tensor.abs().max().item() <= 0.5
        assert tensor.std().item() == pytest.approx(0.5 / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("value", [[0.1], [0.1, 0.2, 0.3], [-0.1, 1.0], [0.1, "far"], [0.2, 0.1], "none", [True, None]])
def test_limits_of_steps_that_are_none_are_named(value: Any) -> None:
    config = Config({"time_step_limit": value}, "config.json")
    with pytest.raises(ArchetypeError) as caught:
        spec.Mamba2.parse({"num_heads": 2, **step_limits(config)})
    assert "limit" in str(caught.value) and "\n" not in str(caught.value)
