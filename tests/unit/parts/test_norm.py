"""Norms against their written-out formulas."""

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from archetype.nn.registry import build_norm
from tests.helpers.weights import distance, randomize

D = 24


@pytest.fixture
def x() -> Tensor:
    return 3 + 2 * torch.randn(2, 5, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(x: Tensor, eps: float, bias: bool) -> None:
    norm = randomize(build_norm(spec.LayerNorm(eps=eps, bias=bias), D))
    y = x.double()
    mean = y.sum(-1, keepdim=True) / D
    variance = ((y - mean) ** 2).sum(-1, keepdim=True) / D
    expected = (y - mean) / (variance + eps) ** 0.5 * norm.weight.double()
    if bias:
        expected = expected + norm.bias.double()
    assert distance(norm(x), expected) < 1e-6


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_without_a_weight_or_with_one_beside_it(x: Tensor, bias: bool) -> None:
    bare = randomize(build_norm(spec.LayerNorm(bias=bias, weight=False), D))
    offset = randomize(build_norm(spec.LayerNorm(bias=bias, unit_offset=True), D))
    expected = nn.functional.layer_norm(x.double(), (D,))
    zero = torch.zeros(D)
    assert distance(bare(x), expected + (bare.bias if bias else zero)) < 1e-6
    assert distance(offset(x), expected * (1 + offset.weight.double()) + (offset.bias if bias else zero)) < 1e-6
    assert [name for name, _ in bare.named_parameters()] == ["bias"] * bias


def test_rms_norm_without_a_weight(x: Tensor) -> None:
    for eps in (1e-6, 1e-5, 0.5):
        norm = build_norm(spec.RMSNorm(weight=False, eps=eps), D)
        y = x.double() * eps**0.5  # so small that eps counts
        assert distance(norm(y.float()), y / (y.square().mean(-1, keepdim=True) + eps).sqrt()) < 1e-6
        assert list(norm.parameters()) == []


def test_vectors_of_fewer_bits_than_the_weights_are_normed_and_trained(x: Tensor) -> None:
    """Autocast makes them so; every choice of weight, bias and offset, forward and backward."""
    flags = [(weight, bias, offset) for weight in (0, 1) for bias in (0, 1) for offset in range(1 + weight)]
    norms: list[spec.Norm] = [spec.BatchNorm()]
    norms += [spec.LayerNorm(weight=bool(w), bias=bool(b), unit_offset=bool(o)) for w, b, o in flags]
    norms += [spec.RMSNorm(weight=bool(w), unit_offset=bool(o)) for w, b, o in flags if b]
    for choice in norms:
        norm = randomize(build_norm(choice, D)).train()
        few = x.bfloat16().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = norm(few)
        assert distance(y.float(), norm(few.detach().float())) < 2**-7, choice
        y.float().square().sum().backward()
        gradients = [few.grad, *(parameter.grad for parameter in norm.parameters())]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients), choice


def test_an_offset_needs_its_weight() -> None:
    for norm in (spec.LayerNorm, spec.RMSNorm):
        with pytest.raises(ValueError, match="needs a weight"):
            norm(weight=False, unit_offset=True)


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_rms_norm(x: Tensor, eps: float, unit_offset: bool) -> None:
    norm = randomize(build_norm(spec.RMSNorm(eps=eps, unit_offset=unit_offset), D))
    y = x.double()
    weight = norm.weight.double() + (1 if unit_offset else 0)
    expected = y / ((y * y).sum(-1, keepdim=True) / D + eps) ** 0.5 * weight
    assert distance(norm(x), expected) < 1e-6


@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("kind", [spec.RMSNorm, spec.LayerNorm])
def test_a_norm_starts_where_it_multiplies_by_one(
    x: Tensor, kind: type[spec.RMSNorm | spec.LayerNorm], unit_offset: bool
) -> None:
    norm = build_norm(kind(unit_offset=unit_offset), D)
    initialize(norm, spec.NormalInitialization(), 1, seed=0)
    assert torch.equal(norm.weight, torch.full((D,), 0.0 if unit_offset else 1.0))
    assert norm(x).square().mean(-1).allclose(torch.ones(2, 5))


def test_no_norm(x: Tensor) -> None:
    norm = build_norm(spec.NoNorm(), D)
    assert torch.equal(norm(x), x)
    assert list(norm.parameters()) == []


@pytest.mark.parametrize("part", [spec.LayerNorm(), spec.RMSNorm(), spec.RMSNorm(unit_offset=True)])
def test_half_precision_keeps_its_statistics_in_float32(part: spec.Norm) -> None:
    """In float16 itself the squares of these numbers are infinite."""
    norm = randomize(build_norm(part, D))
    x = torch.linspace(300, 1000, D)
    exact = norm(x)
    assert distance(norm.half()(x.half()), exact) < 2e-3


NORMS = [spec.LayerNorm(), spec.RMSNorm(), spec.RMSNorm(unit_offset=True), spec.BatchNorm()]


@pytest.mark.parametrize("part", NORMS)
def test_a_short_vector_from_autocast_meets_a_long_weight(part: spec.Norm, x: Tensor) -> None:
    """Without a warning."""
    norm = randomize(build_norm(part, D)).train()
    exact = norm(x.bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        assert distance(norm(x.bfloat16()), exact) < 5e-3


@pytest.mark.parametrize("part", [spec.LayerNorm(), spec.RMSNorm()])
def test_under_autocast_a_norm_is_rounded_once_for_all_products_that_follow(part: spec.Norm, x: Tensor) -> None:
    norm = randomize(build_norm(part, x.shape[-1]))
    plain = norm(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = norm(x)
    assert plain.dtype == torch.float32 and rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, plain.bfloat16())


def test_a_bias_is_there_only_where_the_specification_says_so() -> None:
    named = {bias: dict(build_norm(spec.LayerNorm(bias=bias), D).named_parameters()) for bias in (True, False)}
    assert (set(named[True]), set(named[False])) == ({"weight", "bias"}, {"weight"})


# over a batch

NUM_TOKENS = torch.tensor([5, 2])
VALID = torch.arange(5) < NUM_TOKENS[:, None]


def context(x: Tensor, num_tokens: Tensor | None = NUM_TOKENS) -> ForwardContext:
    return ForwardContext.of(x, num_tokens=num_tokens)


def pair(eps: float = 1e-5, momentum: float = 0.1) -> tuple[nn.Module, nn.BatchNorm1d]:
    """Ours and torch's, with the same weights."""
    ours = build_norm(spec.BatchNorm(eps=eps, momentum=momentum), D)
    initialize(ours, spec.NormalInitialization(), 1, seed=0)
    randomize(ours).train()
    theirs = nn.BatchNorm1d(D, eps=eps, momentum=momentum)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    return ours, theirs


def batches(x: Tensor) -> list[Tensor]:
    return [x, x.flip(-1) - 1, 0.5 * x.flip(0)]


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("momentum", [0.1, 0.7])
@pytest.mark.parametrize("num_tokens", [None, NUM_TOKENS])
def test_batch_norm_is_torchs_over_the_vectors_that_are_no_padding(
    x: Tensor, eps: float, momentum: float, num_tokens: Tensor | None
) -> None:
    ours, theirs = pair(eps, momentum)
    real = torch.ones(2, 5, dtype=torch.bool) if num_tokens is None else VALID
    for batch in batches(x):
        assert distance(ours(batch, context(batch, num_tokens))[real], theirs(batch[real])) < 1e-6
        assert distance(ours.running_mean, theirs.running_mean) < 1e-6
        assert distance(ours.running_var, theirs.running_var) < 1e-6
    ours.eval(), theirs.eval()
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    assert distance(ours(x, context(x, num_tokens))[real], theirs(x[real])) < 1e-6
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_padding_changes_nothing_whatever_it_holds(x: Tensor) -> None:
    ours, again = pair()[0], pair()[0]
    garbage = torch.where(VALID[..., None], x, 1e4)
    assert torch.equal(ours(x, context(x))[VALID], again(garbage, context(x))[VALID])
    assert torch.equal(ours.running_mean, again.running_mean)
    assert torch.equal(ours.running_var, again.running_var)
    assert again(garbage, context(x)).isfinite().all()


def test_gradients_run_through_the_batchs_statistics(x: Tensor) -> None:
    ours, theirs = pair()
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.randn(7, D, generator=torch.Generator().manual_seed(2))
    (ours(mine, context(x))[VALID] * weights).sum().backward()
    (theirs(other[VALID]) * weights).sum().backward()
    assert distance(mine.grad, other.grad) < 1e-5
    assert not mine.grad[~VALID].any()


@pytest.mark.parametrize("count", [0, 1])
def test_one_vector_alone_has_no_variance_and_is_normalized_by_what_was_kept(x: Tensor, count: int) -> None:
    ours, _ = pair()
    ours(x, context(x, None))
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    y = ours(x, context(x, torch.tensor([count, 0])))
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())
    assert torch.equal(y, ours.eval()(x))


def test_running_statistics_start_at_mean_zero_and_variance_one() -> None:
    norm = build_norm(spec.BatchNorm(), D)
    norm.running_mean.fill_(7.0), norm.running_var.fill_(7.0)
    initialize(norm, spec.NormalInitialization(), 1, seed=0)
    assert torch.equal(norm.running_mean, torch.zeros(D)) and torch.equal(norm.running_var, torch.ones(D))
    assert {name for name, _ in norm.named_parameters()} == {"weight", "bias"}
    assert {name for name, _ in norm.named_buffers()} == {"running_mean", "running_var"}


@pytest.mark.parametrize("kind", [spec.DynamicTanh, spec.DynamicErf])
def test_bounded_functions_of_each_feature(x: Tensor, kind: type[spec.Norm]) -> None:
    norm: nn.Module = build_norm(kind(alpha=0.7), D)
    initialize(norm, spec.NormalInitialization(), 1, seed=0)
    f = torch.tanh if kind is spec.DynamicTanh else torch.erf
    assert distance(norm(x), f(0.7 * x.double())) < 1e-6
    randomize(norm)
    shift = 0.0 if norm.shift is None else norm.shift.double()
    expected = f(norm.alpha.double() * x.double() + shift) * norm.weight.double() + norm.bias.double()
    assert distance(norm(x), expected) < 1e-6


def test_the_gate_of_a_norm_reads_the_normalized_vector(x: Tensor) -> None:
    norm = randomize(build_norm(spec.GatedRMSNorm(eps=0.5, rank=3), D))
    y = x.double() / (x.double().square().mean(-1, keepdim=True) + 0.5) ** 0.5 * norm.weight.double()
    hidden = y @ norm.gate_down.weight.double().T
    gate = torch.sigmoid((hidden * torch.sigmoid(hidden)) @ norm.gate_up.weight.double().T)
    assert distance(norm(x), y * gate) < 1e-6
    assert distance(norm(x), y) > 1e-2
    nn.init.zeros_(norm.gate_up.weight)  # then each factor is a half
    assert distance(norm(x), y / 2) < 1e-6
