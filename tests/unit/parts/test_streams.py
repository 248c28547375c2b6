"""Residual streams and attention over depth: their identities, and what they cost."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import archetype
from archetype import spec
from archetype.cost.formula import symbol
from archetype.cost.registry import ResidualCost
from archetype.errors import SpecError
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.parts.streams.module import doubly_stochastic
from tests.helpers.specs import block, decoder
from tests.helpers.weights import distance, randomize
from tests.unit.cost.test_flops import flops_of

TOKENS = torch.randint(31, (2, 16), generator=torch.Generator().manual_seed(2))
WRONG = 1e-3


def model(residual: Any = None, **changes: Any) -> spec.ModelSpec:
    return decoder(*3 * [block()], **({} if residual is None else {"residual": residual}), **changes)


def with_weights_of(plain: nn.Module, residual: dict[str, Any], fill: Any) -> nn.Module:
    """A model with another residual wiring whose blocks have the weights of `plain`, and its own as `fill` says."""
    other = build(model(residual)).eval()
    own = {name: fill(name, tensor) for name, tensor in other.state_dict().items() if "residual" in name}
    other.load_state_dict(plain.state_dict() | own)
    return other.requires_grad_(False)


def as_a_sum(n: int, certain: float) -> Any:
    """Weights of streams that read the mean, write to all streams alike and keep each as it is."""
    read = torch.full((n,), certain if n == 1 else -math.log(n - 1))
    bias = torch.cat((read, torch.zeros(n), (60.0 * torch.eye(n)).flatten()))
    return lambda name, x: bias[: len(x)].clone() if name.endswith("bias") else torch.zeros_like(x)


@torch.no_grad()
def test_one_stream_with_identities_is_the_sum_to_the_bit() -> None:
    plain = randomize(build(model()))
    streams = with_weights_of(plain, {"kind": "streams", "num_streams": 1, "eps": 0.0}, as_a_sum(1, 60.0))
    assert torch.equal(streams(TOKENS).logits, plain(TOKENS).logits)
    streams.blocks[1].mixer_residual.weights.bias[1] = 0.1  # writes more than what is given
    assert distance(streams(TOKENS).logits, plain(TOKENS).logits) > WRONG


@torch.no_grad()
def test_a_scaled_sum_is_the_sum_whose_norms_have_a_larger_epsilon() -> None:
    """Of n + 1 terms divided by sqrt(n + 1), a norm undoes the factor if its epsilon is n + 1 times as large."""
    eps = 0.1

    def summed(factor: int) -> spec.ModelSpec:
        layers = []
        for layer in range(3):
            first, second = ({"kind": "rms", "eps": eps * (2 * layer + n) ** factor} for n in (1, 2))
            layers.append(block(wiring={"kind": "pre_norm", "norm": first, "feedforward_norm": second}))
        return decoder(*layers, final_norm={"kind": "rms", "eps": eps * 7**factor})

    scaled = randomize(build(summed(0).replace(residual=spec.ScaledSum())))
    plain, other = (build(summed(factor)).eval() for factor in (1, 0))
    for model in (plain, other):
        model.load_state_dict(scaled.state_dict())
    assert distance(scaled(TOKENS).logits, plain(TOKENS).logits) < 1e-6
    assert distance(scaled(TOKENS).logits, other(TOKENS).logits) > WRONG


@torch.no_grad()
@pytest.mark.parametrize("exit", ["weighted", "mean"])
@pytest.mark.parametrize("steps", [0, 20])
def test_equal_streams_are_the_sum(exit: str, steps: int) -> None:
    plain = randomize(build(model()))
    residual = {"kind": "streams", "num_streams": 4, "eps": 0.0, "exit": exit, "sinkhorn_steps": steps}
    streams = with_weights_of(plain, residual, as_a_sum(4, 0.0))
    assert distance(streams(TOKENS).logits, plain(TOKENS).logits) < 1e-6
    streams.blocks[1].mixer_residual.weights.bias[5] = 1.0
    assert distance(streams(TOKENS).logits, plain(TOKENS).logits) > WRONG


@torch.no_grad()
def test_one_stream_that_is_not_predicted_is_the_sum() -> None:
    """Without coefficients, an innovation is added as it is."""
    plain = randomize(build(model()))
    updates = with_weights_of(plain, {"kind": "altup", "num_streams": 1}, lambda name, x: torch.zeros_like(x))
    assert distance(updates(TOKENS).logits, plain(TOKENS).logits) < 1e-6
    updates.blocks[1].residual.router.weight.fill_(1.0)
    updates.blocks[1].residual.norm.weight.fill_(1.0)
    updates.blocks[1].residual.correction.weight.fill_(1.0)
    assert distance(updates(TOKENS).logits, plain(TOKENS).logits) > WRONG


@torch.no_grad()
def test_alternating_updates_follow_their_equations() -> None:
    """One position at a time: a prediction of all streams, a block on the active one, and its innovation for all."""
    residual = randomize(build(model({"kind": "altup", "num_streams": 3, "active": 1}))).blocks[1].residual.double()
    streams = torch.randn(2, 5, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    context = ForwardContext.of(streams[:, :, 0])
    predicted = residual.predict(streams, context)
    y = 2 * residual.read(predicted, context)
    written = residual.write(predicted, y, context)

    def routed(x: Tensor) -> Tensor:
        normed = nn.functional.rms_norm(x, (16,), residual.norm.weight, residual.norm.eps)
        return torch.tanh(residual.router.weight @ (normed / 16))

    for row, position in ((0, 0), (1, 4)):
        x = streams[row, position]
        a = (residual.prediction.weight @ routed(x[1])).view(3, 3)
        p = torch.stack([x[i] + sum(a[i, j] * x[j] for j in range(3)) for i in range(3)])
        b = residual.correction.weight @ routed(2 * p[1])
        expected = torch.stack([p[i] + (1 + b[i]) * p[1] for i in range(3)])
        assert distance(written[row, position], expected) < 1e-12
        assert distance(written[row, position], p) > WRONG


@torch.no_grad()
def test_streams_begin_nearly_as_one() -> None:
    """As they are drawn, a model of four streams is within a percent of the model of a sum."""
    plain = build(model()).eval()
    drawn = build(model("streams")).eval()
    assert distance(drawn(TOKENS).logits, plain(TOKENS).logits) < 0.02


def test_a_published_count_of_stream_weights() -> None:
    """(2 + n) n (n D + 1) + 3 numbers for each sublayer of DeepSeek-V4-Flash, and n^2 D + n + 1 at the end."""
    cost = ResidualCost.of(spec.Streams(num_streams=4), symbol("D", 4096))
    assert cost.parameters().value == 393_243
    assert (end := cost.exit(43)) is not None and end.parameters().value == 65_541


def test_the_mixing_matrix_is_doubly_stochastic() -> None:
    logits = torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0))
    matrix = doubly_stochastic(logits, 20, 1e-6)
    assert matrix.min() > 0
    assert (matrix.sum(-2) - 1).abs().max() < 1e-5  # columns are normalized last
    rows = [(doubly_stochastic(logits, steps, 1e-6).sum(-1) - 1).abs().max() for steps in (1, 5, 20, 100)]
    assert rows == sorted(rows, reverse=True) and rows[0] > 0.1 and rows[2] < 5e-3 and rows[3] < 1e-4


@torch.no_grad()
def test_mixing_keeps_the_mean_of_the_streams() -> None:
    """A doubly stochastic matrix moves content between streams: without writing, their sum stays."""
    residual = randomize(build(model({"kind": "streams", "sinkhorn_steps": 100}))).blocks[0].mixer_residual
    stream = torch.randn(2, 5, 4, 16, generator=torch.Generator().manual_seed(1))
    context = ForwardContext.of(stream[:, :, 0])
    mixed = residual.write(stream, torch.zeros(2, 5, 16), context)
    assert distance(mixed.sum(2), stream.sum(2)) < 1e-3
    assert distance(mixed, stream) > WRONG


@torch.no_grad()
@pytest.mark.parametrize("normed", [False, True])
def test_attention_over_depth_is_a_mean_of_all_blocks_at_first(normed: bool) -> None:
    """Queries of zero weigh alike: layer by layer, with the sums kept in a list."""
    residual = {"kind": "depth_attention", "layers_per_block": 2, "normed_values": normed}
    built = randomize(build(model(residual)))
    for name, parameter in built.named_parameters():
        if name.endswith("query"):
            parameter.zero_()
    context = built.context(TOKENS)
    sums: list[Tensor] = [built.embedding(TOKENS, context)]

    def read() -> Tensor:
        vectors = [torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6) if normed else x for x in sums]
        return torch.stack(vectors).mean(0)

    for layer, layer_block in enumerate(built.blocks):
        for name in ("mixer", "feedforward"):
            is_first = (layer, name) == (0, "mixer")
            y = getattr(layer_block, name)(layer_block.norm(name)(sums[0] if is_first else read(), context), context)
            sums.append(y) if name == "mixer" and layer % 2 == 0 else sums.append(sums.pop() + y)
    expected = built.lm_head(built.final_norm(read(), context), built.embedding.token.weight)
    assert distance(built(TOKENS).logits, expected) < 1e-6
    built.blocks[1].mixer_residual.attend.query.fill_(1.0)
    assert distance(built(TOKENS).logits, expected) > WRONG


KINDS = ["streams", {"kind": "streams", "sinkhorn_steps": 0}, {"kind": "depth_attention", "layers_per_block": 2}]


@pytest.mark.parametrize("residual", KINDS)
def test_products_are_counted(residual: Any) -> None:
    described = [model(), model(residual)]
    reports = [archetype.cost_report(one, batch=2, length=16).flops["forward"] for one in described]
    counted = []
    for one in described:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            build(one)(TOKENS)
        counted.append(counter.get_total_flops())
    assert reports[1] - reports[0] == counted[1] - counted[0] > 0


@pytest.mark.parametrize(
    ("layers", "cause"),
    [
        ([block(wiring={"kind": "parallel", "norm": "rms"})], "needs sequential sublayers"),
        ([{"repeat": 2, "shared": True, "reinject": True, "blocks": [block()]}], "adds vectors in each pass"),
        ([{"repeat": 2, "shared": True, "blocks": [block()]}], r"no query in .* whose weights layers\[1\] uses"),
        ([block(wiring={"kind": "post_norm", "norm": "rms"})], "adds outputs to the stream"),
    ],
)
def test_what_cannot_grow_is_refused(layers: list[Any], cause: str) -> None:
    with pytest.raises(SpecError, match=cause) as error:
        decoder(*layers, residual="depth_attention")
    assert str(error.value).startswith("residual")


def test_a_layer_that_is_repeated_begins_a_sum_in_each_pass() -> None:
    """Weights are shared, sums are not: the unrolled model with the same weights computes the same."""
    residual = {"kind": "depth_attention", "layers_per_block": 1}
    shared = randomize(build(decoder(block(), {"repeat": 3, "shared": True, "block": block()}, residual=residual)))
    unrolled = build(decoder(*4 * [block()], residual=residual)).eval()
    weights = shared.state_dict()
    unrolled.load_state_dict(
        {name: weights[re.sub(r"blocks\.[23]", "blocks.1", name)] for name in unrolled.state_dict()}
    )
    with torch.no_grad():
        assert torch.equal(shared(TOKENS).logits, unrolled(TOKENS).logits)


def test_parallel_sublayers_with_a_shared_norm_read_the_streams_with_weights_of_their_own() -> None:
    wiring = {"kind": "parallel", "norm": {"kind": "rms"}, "shared_norm": True}
    drawn = decoder(block(wiring=wiring), residual={"kind": "streams", "num_streams": 2})
    built = randomize(build(drawn))
    counted = archetype.cost_report(drawn, batch=2, length=16).flops["forward"]
    assert flops_of(lambda: built(TOKENS)) == counted
    built(TOKENS).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())
