"""Wirings against their formulas, with the contents that the block itself holds."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.models.block.module import build_block
from archetype.models.initialization import initialize
from archetype.nn.cache import KVCache
from archetype.nn.context import EncoderOutput, ForwardContext
from archetype.nn.place import Place
from archetype.nn.state import BlockState
from tests.helpers.weights import distance, randomize

D = 8
CPU = torch.device("cpu")
X = torch.randn(2, 5, D, generator=torch.Generator().manual_seed(3))
SOURCE = EncoderOutput(torch.randn(2, 4, D, generator=torch.Generator().manual_seed(4)), torch.tensor([4, 2]))
NO_NORM = spec.NoNorm()


def build(
    wiring: spec.Wiring, dropout: float = 0.0, crosses: bool = False, causal: bool = True, **contents: Any
) -> nn.Module:
    contents = {
        "mixer": spec.Attention(num_heads=2, position=spec.Rotary()),
        "feedforward": spec.MLP(d_ff=12, activation="gelu"),
        "cross_attention": spec.Attention(num_heads=4) if crosses else None,
    } | contents
    block = build_block(spec.Block(wiring=wiring, dropout=dropout, **contents), Place(D, causal=causal, layer=0))
    initialize(block, spec.NormalInitialization(), 1, seed=0)
    return randomize(block)


def context(num_tokens: Tensor | None = None) -> ForwardContext:
    context = ForwardContext.of(X, num_tokens=num_tokens)
    context.encoder_output = SOURCE
    return context


def run(block: nn.Module, x: Tensor = X) -> Tensor:
    return block(x, context())


def mixed(block: nn.Module, x: Tensor) -> Tensor:
    return block.mixer(x, context())


def crossed(block: nn.Module, x: Tensor) -> Tensor:
    return block.cross(x, context(), block.cross.project(SOURCE, context()))


def fed(block: nn.Module, x: Tensor) -> Tensor:
    return block.feedforward(x, context())


norms = pytest.mark.parametrize("norm", [spec.LayerNorm(), spec.RMSNorm(), spec.RMSNorm(unit_offset=True)])


@norms
def test_pre_norm(norm: spec.Norm) -> None:
    block = build(spec.PreNorm(norm=norm))
    x = X + mixed(block, block.mixer_norm(X))
    assert torch.equal(run(block), x + fed(block, block.feedforward_norm(x)))


@norms
def test_post_norm(norm: spec.Norm) -> None:
    block = build(spec.PostNorm(norm=norm))
    x = block.mixer_norm(X + mixed(block, X))
    assert torch.equal(run(block), block.feedforward_norm(x + fed(block, x)))


@norms
def test_sandwich(norm: spec.Norm) -> None:
    block = build(spec.SandwichNorm(norm=norm))
    x = X + block.mixer_post_norm(mixed(block, block.mixer_norm(X)))
    assert torch.equal(run(block), x + block.feedforward_post_norm(fed(block, block.feedforward_norm(x))))


@norms
def test_output_norm(norm: spec.Norm) -> None:
    block = build(spec.OutputNorm(norm=norm))
    x = X + block.mixer_norm(mixed(block, X))
    assert torch.equal(run(block), x + block.feedforward_norm(fed(block, x)))


@norms
def test_parallel_with_two_norms(norm: spec.Norm) -> None:
    block = build(spec.ParallelResidual(norm=norm))
    expected = X + mixed(block, block.mixer_norm(X)) + fed(block, block.feedforward_norm(X))
    assert torch.equal(run(block), expected)


@norms
def test_parallel_with_a_shared_norm(norm: spec.Norm) -> None:
    block = build(spec.ParallelResidual(norm=norm, shared_norm=True))
    normed = block.mixer_norm(X)
    assert torch.equal(run(block), X + mixed(block, normed) + fed(block, normed))
    assert "feedforward_norm" not in names(block)


def test_plain() -> None:
    block = build(spec.Plain())
    assert torch.equal(run(block), fed(block, mixed(block, X)))
    alone = build(spec.Plain(), feedforward=spec.NoFeedForward())
    assert torch.equal(run(alone), mixed(alone, X))


# with a look at a source


@norms
def test_pre_norm_with_cross_attention(norm: spec.Norm) -> None:
    block = build(spec.PreNorm(norm=norm), crosses=True)
    x = X + mixed(block, block.mixer_norm(X))
    x = x + crossed(block, block.cross_norm(x))
    assert torch.equal(run(block), x + fed(block, block.feedforward_norm(x)))


@norms
def test_post_norm_with_cross_attention(norm: spec.Norm) -> None:
    block = build(spec.PostNorm(norm=norm), crosses=True)
    x = block.mixer_norm(X + mixed(block, X))
    x = block.cross_norm(x + crossed(block, x))
    assert torch.equal(run(block), block.feedforward_norm(x + fed(block, x)))


@norms
def test_sandwich_with_cross_attention(norm: spec.Norm) -> None:
    block = build(spec.SandwichNorm(norm=norm), crosses=True)
    x = X + block.mixer_post_norm(mixed(block, block.mixer_norm(X)))
    x = x + block.cross_post_norm(crossed(block, block.cross_norm(x)))
    assert torch.equal(run(block), x + block.feedforward_post_norm(fed(block, block.feedforward_norm(x))))


@norms
def test_output_norm_with_cross_attention(norm: spec.Norm) -> None:
    block = build(spec.OutputNorm(norm=norm), crosses=True)
    x = X + block.mixer_norm(mixed(block, X))
    x = x + block.cross_norm(crossed(block, x))
    assert torch.equal(run(block), x + block.feedforward_norm(fed(block, x)))


def test_plain_adds_what_was_found_to_the_vector_that_asked() -> None:
    block = build(spec.Plain(), crosses=True)
    x = mixed(block, X)
    assert torch.equal(run(block), fed(block, x + crossed(block, x)))


WIRINGS: list[spec.Wiring] = [
    spec.PreNorm(norm=spec.RMSNorm()),
    spec.PostNorm(norm=spec.RMSNorm()),
    spec.SandwichNorm(norm=spec.RMSNorm()),
    spec.OutputNorm(norm=spec.RMSNorm()),
    spec.Plain(),
]
wirings = pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.kind)


@wirings
def test_a_state_remembers_the_source_beside_the_mixers_own(wiring: spec.Wiring) -> None:
    """Token by token the same as all at once; the source is read when the state is made, and not again."""
    block = build(wiring, crosses=True)
    whole = run(block)
    own = block.mixer.new_state(2, 5, torch.float32, CPU)
    state = BlockState(own, block.cross.project(SOURCE, context()))
    outputs = []
    for place in range(5):
        x = X[:, place : place + 1]
        y = block(x, ForwardContext.of(x, torch.full((2,), place)), state)  # a context without a source
        assert state.mixer is own and isinstance(own, KVCache)
        outputs.append(y)
    assert distance(torch.cat(outputs, 1), whole) < 2e-6


@wirings
def test_beside_a_mixers_state_alone_the_source_is_that_of_the_context(wiring: spec.Wiring) -> None:
    block = build(wiring, crosses=True)
    state = block.mixer.new_state(2, 5, torch.float32, CPU)
    outputs = []
    for start, end in ((0, 3), (3, 5)):
        x = X[:, start:end]
        context = ForwardContext.of(x, torch.full((2,), start))
        context.encoder_output = SOURCE
        outputs.append(block(x, context, state))
    assert distance(torch.cat(outputs, 1), run(block)) < 2e-6


def test_without_a_state_nothing_is_remembered() -> None:
    block = build(spec.Plain(), crosses=True)
    first = run(block)
    run(block, X.flip(0))
    assert torch.equal(run(block), first)


@pytest.mark.parametrize("cached", [False, True])
def test_without_a_source_it_says_so(cached: bool) -> None:
    block = build(spec.Plain(), crosses=True)
    context = ForwardContext.of(X, torch.zeros(2, dtype=torch.long) if cached else None)
    state = block.mixer.new_state(2, 5, torch.float32, CPU) if cached else None
    with pytest.raises(AssertionError, match="cross-attention needs an encoder's output"):
        block(X, context, state)


# norms and their names


def names(block: nn.Module) -> set[str]:
    return {name.partition(".")[0] for name, _ in block.named_parameters()}


CONTENTS = {"mixer", "cross", "feedforward"}
PRE = {f"{name}_norm" for name in CONTENTS}
POST = {f"{name}_post_norm" for name in CONTENTS}


NORM_NAMES: dict[str, set[str]] = {
    "pre_norm": PRE, "post_norm": PRE, "sandwich": PRE | POST, "output_norm": PRE, "plain": set(),
}  # fmt: skip


@wirings
def test_names_of_parameters(wiring: spec.Wiring) -> None:
    expected = NORM_NAMES[wiring.kind]
    assert names(build(wiring, crosses=True)) == CONTENTS | expected
    here = {name for name in expected if not name.startswith("cross")}
    assert names(build(wiring)) == {"mixer", "feedforward"} | here
    here = {name for name in expected if name.startswith("mixer")}
    assert names(build(wiring, feedforward=spec.NoFeedForward())) == {"mixer"} | here


@wirings
def test_a_block_of_its_mixer_alone(wiring: spec.Wiring) -> None:
    """The same as one whose feed-forward part gives nothing, but for what post-norm does once more."""
    alone, whole = build(wiring, feedforward=spec.NoFeedForward()), build(wiring)
    whole.load_state_dict(alone.state_dict(), strict=False)
    with torch.no_grad():
        whole.feedforward.down.weight.zero_()
    expected = torch.zeros_like(X) if wiring.kind == "plain" else run(alone)
    if wiring.kind == "post_norm":
        expected = whole.feedforward_norm(expected)
    assert torch.equal(run(whole), expected)
    assert run(alone).any()


BATCHED = [
    spec.PreNorm(norm=spec.BatchNorm()),
    spec.PostNorm(norm=spec.BatchNorm()),
    spec.SandwichNorm(norm=spec.BatchNorm()),
    spec.OutputNorm(norm=spec.BatchNorm()),
    spec.ParallelResidual(norm=spec.BatchNorm()),
]


@pytest.mark.parametrize("wiring", BATCHED, ids=lambda wiring: wiring.kind)
def test_every_norm_is_told_what_is_padding(wiring: spec.Wiring) -> None:
    crosses = wiring.kind != "parallel"
    num_tokens = torch.tensor([5, 2])
    real = torch.arange(5) < num_tokens[:, None]
    results = []
    for x in (X, torch.where(real[..., None], X, 50.0)):
        block = build(wiring, crosses=crosses, causal=False).train()
        results.append((block(x, context(num_tokens))[real], *block.buffers()))
    assert len(results[0]) == 1 + 2 * sum("norm" in name for name in names(block))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


# dropout

DROPPED: list[spec.Wiring] = [
    spec.PreNorm(norm=spec.RMSNorm()),
    spec.PostNorm(norm=spec.NoNorm()),
    spec.SandwichNorm(norm=spec.RMSNorm()),
    spec.ParallelResidual(norm=spec.RMSNorm()),
]


@pytest.mark.parametrize("wiring", DROPPED, ids=lambda wiring: wiring.kind)
def test_dropout_takes_from_what_is_added_and_in_training_only(wiring: spec.Wiring) -> None:
    """Nearly all of it taken, what is left of the block is the residual stream itself."""
    block = build(wiring, dropout=0.999, crosses=wiring.kind != "parallel")
    whole = run(block)
    torch.manual_seed(0)
    left = run(block.train())
    assert not torch.allclose(whole, left)
    assert (left == X).float().mean() > 0.9


def test_dropout_of_a_plain_block_takes_from_what_it_gives() -> None:
    block = build(spec.Plain(), dropout=0.999).train()
    torch.manual_seed(0)
    assert (run(block) == 0).float().mean() > 0.9
    assert not (run(block.eval()) == 0).any()


WIRINGS = (
    *(kind(norm=NO_NORM) for kind in (spec.PreNorm, spec.PostNorm, spec.SandwichNorm, spec.OutputNorm)),
    *(spec.ParallelResidual(norm=NO_NORM, shared_norm=shared) for shared in (False, True)),
    spec.Plain(),
)


def test_every_content_is_scaled_in_every_wiring() -> None:
    """Two contents that give ones: without norms each adds the scale, and a plain wiring's last is all there is."""
    for wiring in WIRINGS:
        block = build(wiring, residual_scale=0.25)
        for content in (block.mixer, block.feedforward):
            content.forward = lambda x, *rest: torch.ones_like(x)  # type: ignore[method-assign]
        expected = 0.25 * torch.ones_like(X) if isinstance(wiring, spec.Plain) else X + 0.5
        assert distance(run(block), expected) < 1e-6, wiring


@pytest.mark.parametrize("norm", [spec.LayerNorm(), spec.RMSNorm()])
def test_under_autocast_the_stream_of_a_post_norm_stays_in_float32(norm: spec.Norm) -> None:
    block, x = build(spec.PostNorm(norm=norm)), torch.randn(2, 5, D)
    read: list[torch.dtype] = []
    block.mixer.register_forward_pre_hook(lambda part, arguments: read.append(arguments[0].dtype))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = block(x, ForwardContext.of(x))
    assert y.dtype == torch.float32 and not torch.equal(y, y.to(torch.bfloat16).float())
    assert read == [torch.bfloat16]
