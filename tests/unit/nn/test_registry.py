"""Parts that a test adds to every role: what is registered is built, and what is not is refused in one line."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.errors import SpecError
from archetype.models.block.module import Block, build_block
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import (
    build_feedforward,
    build_mixer,
    build_norm,
    build_position,
    module_for,
)
from archetype.parts.attention.core import attend
from archetype.parts.attention.module import Attention
from archetype.parts.norm.module import RMSNorm
from archetype.parts.position.module import Rotation, ScoreBias
from archetype.roles.pattern import MaskContext, PatternRule, pattern_rule, rule_for
from archetype.spec.registry import PROVIDED
from tests.helpers import registered
from tests.helpers.weights import distance, randomize

D, B, T = 8, 2, 6
X = torch.randn(B, T, D, generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")


# a part of every role


class RunningMean(spec.Mixer):
    kind: Literal["running_mean"] = "running_mean"


@dataclass
class SumState(LayerState):
    total: Tensor
    count: Tensor


class RunningMeanMixer(nn.Module):
    def __init__(self, mixer: RunningMean, place: Place) -> None:
        super().__init__()
        self.place = place

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> SumState:
        return SumState(torch.zeros(batch, D, dtype=dtype, device=device), torch.zeros(batch, 1, device=device))

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerState | None = None) -> Tensor:
        state = cache if isinstance(cache, SumState) else self.new_state(len(x), 0, x.dtype, x.device)
        sums = state.total[:, None] + x.cumsum(1)
        counts = state.count[:, None] + torch.arange(1, x.shape[1] + 1)[:, None]
        state.total, state.count = sums[:, -1], counts[:, -1]
        return sums / counts


class Square(spec.FeedForward):
    kind: Literal["square"] = "square"


class SquareFeedForward(nn.Module):
    def __init__(self, feedforward: Square, place: Place) -> None:
        super().__init__()

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        return x.square()


class MaxNorm(spec.Norm):
    kind: Literal["max"] = "max"
    eps: float = 0.5


class MaxNormModule(nn.Module):
    def __init__(self, norm: MaxNorm, features: int) -> None:
        super().__init__()
        self.eps = norm.eps

    def forward(self, x: Tensor, context: ForwardContext | None = None) -> Tensor:
        return x / (x.abs().amax(-1, keepdim=True) + self.eps)


class Ramp(spec.EmbeddingPosition):
    kind: Literal["ramp"] = "ramp"


class RampPosition(nn.Module):
    def __init__(self, position: Ramp, context_length: int, d_model: int) -> None:
        super().__init__()
        self.step, self.d_model = 1 / context_length, d_model

    def forward(self, positions: Tensor) -> Tensor:
        return (positions[..., None] * self.step).expand(*positions.shape, self.d_model)


class Squared(spec.MixerPosition):
    kind: Literal["squared_distance"] = "squared_distance"


class SquaredBias(ScoreBias):
    def __init__(self, position: Squared, sizes: spec.AttentionSizes) -> None:
        super().__init__()
        self.num_heads = sizes.num_heads

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        distances = queries[:, None, :, None] - keys[:, None, None, :]
        return -0.1 * distances.square().float().expand(-1, self.num_heads, -1, -1)


class Flipped(spec.MixerPosition):
    kind: Literal["flipped"] = "flipped"


class FlippedRotation(Rotation):
    """By half a turn at every odd position."""

    def __init__(self, position: Flipped, sizes: spec.AttentionSizes) -> None:
        super().__init__()

    def forward(self, x: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        return x * (1 - 2 * (positions % 2))[:, None, :, None]


class EvenKeys(spec.Pattern):
    kind: Literal["even_keys"] = "even_keys"


class EvenKeysRule(PatternRule[EvenKeys]):
    def rule(self, i: Any, j: Any, context: MaskContext) -> Any:
        return (j % 2 == 0) | (i == j)


class HalfResidual(spec.Wiring):
    kind: Literal["half_residual"] = "half_residual"
    norm: Annotated[spec.Norm, spec.ByKind(spec.Norm)]


class HalfResidualBlock(Block):
    def forward(self, x: Tensor, context: ForwardContext, cache: LayerState | None = None) -> Tensor:
        x = 0.5 * x + self.mixer(self.mixer_norm(x, context), context, cache)
        return 0.5 * x + self.feedforward(self.feedforward_norm(x, context), context)


PARTS: dict[type[spec.Part], type[nn.Module]] = {
    RunningMean: RunningMeanMixer,
    Square: SquareFeedForward,
    MaxNorm: MaxNormModule,
    Ramp: RampPosition,
    Squared: SquaredBias,
    Flipped: FlippedRotation,
    HalfResidual: HalfResidualBlock,
}


@pytest.fixture
def parts() -> Iterator[None]:
    """All of them by name, without modules; whatever a test registers is removed again."""
    with registered.registries_as_before():
        for part in (*PARTS, EvenKeys):
            spec.part(part)
        yield


@pytest.fixture
def modules(parts: None) -> None:
    """And their modules."""
    for part, module in PARTS.items():
        module_for(part)(module)
    rule_for(EvenKeys)(EvenKeysRule)


def attention(**fields: Any) -> Attention:
    mixer = build_mixer(spec.Attention(num_heads=2, **fields), Place(D))
    assert isinstance(mixer, Attention)
    randomize(mixer)
    return mixer


def in_two_pieces(mixer: nn.Module) -> Tensor:
    state = mixer.new_state(B, T, torch.float32, CPU)
    first, second = X[:, :4], X[:, 4:]
    return torch.cat(
        (
            mixer(first, ForwardContext.of(first, torch.full((B,), 0)), state),
            mixer(second, ForwardContext.of(second, torch.full((B,), 4)), state),
        ),
        dim=1,
    )


# built


def test_a_mixer_is_built_for_its_place_and_decodes(modules: None) -> None:
    mixer = build_mixer(RunningMean(), Place(D, layer=3))
    assert isinstance(mixer, RunningMeanMixer) and mixer.place == Place(D, layer=3)
    expected = torch.stack([X[:, : t + 1].mean(1) for t in range(T)], dim=1)
    assert distance(mixer(X, ForwardContext.of(X)), expected) < 1e-6
    assert distance(in_two_pieces(mixer), expected) < 1e-6


def test_a_feedforward_a_norm_and_an_embedding_position_are_built(modules: None) -> None:
    assert torch.equal(build_feedforward(Square(), Place(D))(X, ForwardContext.of(X)), X * X)
    assert torch.equal(build_norm(MaxNorm(eps=1.0), D)(X), X / (X.abs().amax(-1, keepdim=True) + 1))
    added = build_position(Ramp(), 8, D)(torch.tensor([[0, 2, 8]]))
    assert torch.equal(added, torch.tensor([[0, 0.25, 1]])[..., None].expand(1, 3, D))


def test_a_norm_may_stand_on_queries_and_keys(modules: None) -> None:
    mixer = attention(qk_norm={"kind": "max"})
    queries = mixer.q(X).unflatten(-1, (2, -1)).transpose(1, 2)
    assert torch.equal(mixer.queries(X), build_norm(MaxNorm(), 4)(queries))


def test_a_score_bias_is_added_to_attentions_scores(modules: None) -> None:
    mixer = attention(position={"kind": "squared_distance"})
    places = torch.arange(T)
    numbers = (-0.1 * (places[:, None] - places).square()).masked_fill(places[:, None] < places, -torch.inf)
    y = attend(mixer.queries(X), *mixer.keys_and_values(X), mixer.score_function, numbers[None, None])
    assert distance(mixer(X, ForwardContext.of(X)), mixer.merge_heads(y)) < 1e-6
    assert distance(in_two_pieces(mixer), mixer.merge_heads(y)) < 1e-6


def test_a_rotation_turns_queries_and_keys(modules: None) -> None:
    mixer = attention(position={"kind": "flipped"})
    signs = (1 - 2 * (torch.arange(T) % 2))[:, None]
    k, v = mixer.keys_and_values(X)
    y = mixer.merge_heads(attend(signs * mixer.queries(X), signs * k, v, mixer.score_function, causal=True))
    assert distance(mixer(X, ForwardContext.of(X)), y) < 1e-6
    assert distance(in_two_pieces(mixer), y) < 1e-6


def test_a_pattern_needs_a_rule_only(modules: None) -> None:
    mixer = attention(pattern={"kind": "even_keys"})
    allowed = torch.tensor([[j <= i and (j % 2 == 0 or i == j) for j in range(T)] for i in range(T)])
    y = attend(mixer.queries(X), *mixer.keys_and_values(X), mixer.score_function, allowed[None, None])
    assert distance(mixer(X, ForwardContext.of(X)), mixer.merge_heads(y)) < 1e-6
    assert distance(in_two_pieces(mixer), mixer.merge_heads(y)) < 1e-6
    rule = pattern_rule(EvenKeys())
    assert rule.pairs(MaskContext(True, T)) == allowed.sum() and rule.cache_length(99) == 99


def test_a_block_of_new_parts_alone_is_read_by_their_names_and_built(modules: None) -> None:
    described = {
        "wiring": {"kind": "half_residual", "norm": {"kind": "max"}},
        "mixer": {"kind": "running_mean"},
        "feedforward": {"kind": "square"},
    }
    block = build_block(spec.Block.parse(described), Place(D))
    norm, mixer, context = (
        build_norm(MaxNorm(), D),
        build_mixer(RunningMean(), Place(D)),
        ForwardContext.of(X),
    )
    x = 0.5 * X + mixer(norm(X), context)
    assert torch.equal(block(X, context), 0.5 * x + norm(x).square())
    assert spec.Block.parse(described).dump() == described


def test_a_part_that_extends_another_is_computed_by_its_module() -> None:
    class QuietNorm(spec.RMSNorm):
        """Not registered by any name: built from Python alone."""

        eps: float = 0.1

    assert isinstance(build_norm(QuietNorm(), D), RMSNorm)


# refused

BUILDERS: dict[str, Callable[[], object]] = {
    "running_mean: no module is registered for RunningMean": lambda: build_mixer(RunningMean(), Place(D)),
    "square: no module is registered for Square": lambda: build_feedforward(Square(), Place(D)),
    "max: no module is registered for MaxNorm": lambda: build_norm(MaxNorm(), D),
    "ramp: no module is registered for Ramp": lambda: build_position(Ramp(), 8, D),
    "squared_distance: no module is registered for Squared": lambda: attention(position=Squared()),
    "flipped: no module is registered for Flipped": lambda: attention(position=Flipped()),
    "half_residual: no module is registered for HalfResidual": lambda: build_block(
        spec.Block(wiring=HalfResidual(norm=spec.NoNorm()), mixer=RunningMean()), Place(D)
    ),
}


@pytest.mark.parametrize("message", BUILDERS)
def test_a_part_without_a_module_is_refused_in_one_line(message: str, parts: None) -> None:
    with pytest.raises(SpecError) as error:
        BUILDERS[message]()
    assert str(error.value) == f"{message}; register a module: archetype.register(SPEC, module=MODULE)"


def test_a_pattern_without_a_rule_is_refused_in_one_line(parts: None) -> None:
    with pytest.raises(SpecError) as error:
        attention(pattern=EvenKeys())(X, ForwardContext.of(X))
    cause = "EvenKeys has no rule for which positions see each other"
    assert str(error.value) == f"pattern: {cause}; register a rule: archetype.register(..., rule=...)"


def test_nothing_is_left_behind() -> None:
    assert not {*PARTS, EvenKeys} & {kind for _, kind in PROVIDED}
    assert all(part.model_fields["kind"].default not in role.kinds for part in PARTS for role in part.roles())
