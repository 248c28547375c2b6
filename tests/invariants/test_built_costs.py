"""Parts from outside cost what is built of them: in each layer, around the contents, where a base costs otherwise."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import archetype
from archetype import spec
from archetype.cost.formula import Counts
from archetype.errors import SpecError
from archetype.estimate.match import match
from archetype.models.block.module import PreNormBlock
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.residual import ResidualStream
from archetype.parts.attention.cost import AttentionCost
from archetype.parts.attention.module import Attention
from archetype.roles.norm import AnyNorm
from tests.helpers import registered


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    """What a test registers is gone after it."""
    with registered.registries_as_before():
        yield


class Scaled(spec.Attention):
    """Attention with a weight for each feature of what it gives."""

    kind: Literal["scaled_attention"] = "scaled_attention"  # type: ignore[assignment]


class ScaledModule(Attention):
    def __init__(self, mixer: Scaled, place: Place) -> None:
        super().__init__(mixer, place)
        self.scale = nn.Parameter(torch.ones(place.d_model))

    def forward(self, x: Tensor, context: ForwardContext, state: Any = None) -> Tensor:
        return super().forward(x, context, state) * self.scale


class Deepening(spec.FeedForward):
    """Layer l has l + 1 products."""

    kind: Literal["deepening"] = "deepening"


class DeepeningModule(nn.Module):
    def __init__(self, feedforward: Deepening, place: Place) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(place.d_model, place.d_model) for _ in range(place.layer + 1))

    def forward(self, x: Tensor, context: ForwardContext, state: Any = None) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class Mixed(spec.Wiring):
    """Each content's output goes through a projection that the wiring has."""

    normalizes_input = adds_to_stream = True
    kind: Literal["mixed"] = "mixed"
    norm: AnyNorm = spec.RMSNorm()


class MixedBlock(PreNormBlock):
    def __init__(self, block: spec.Block, place: Place) -> None:
        super().__init__(block, place)
        self.mix = nn.Linear(place.d_model, place.d_model)

    def branch(self, y: Tensor) -> Tensor:
        mixed: Tensor = self.mix(super().branch(y))
        return mixed


class Streams(spec.Residual):
    """Three streams, of which each content reads a learned mixture."""

    kind: Literal["three_streams"] = "three_streams"


class StreamsModule(ResidualStream):
    def __init__(self, residual: Streams, place: Place) -> None:
        super().__init__(residual, place)
        self.gather, self.scatter = nn.Parameter(torch.rand(1, 3)), nn.Parameter(torch.rand(3, 1))

    @staticmethod
    def enter(residual: Streams, x: Tensor) -> Tensor:
        return x[:, :, None].expand(-1, -1, 3, -1)

    @staticmethod
    def leave(residual: Streams, stream: Tensor) -> Tensor:
        return stream.sum(2)

    def read(self, stream: Tensor, context: ForwardContext) -> Tensor:
        return (self.gather @ stream).squeeze(2)

    def write(self, stream: Tensor, y: Tensor, context: ForwardContext) -> Tensor:
        return stream + self.scatter @ y[:, :, None]


def model(**changes: Any) -> spec.ModelSpec:
    """Three layers of a small decoder, with some of its block's fields changed."""
    data = archetype.load_spec("llama-tiny").dump() | {"d_model": 24, "vocab_size": 31, "context_length": 16}
    block = data["layers"][0]["block"] | {"feedforward": {"kind": "gated", "d_ff": 40, "activation": "silu"}}
    block["mixer"] = {"kind": "attention", "num_heads": 3, "position": {"kind": "rotary"}}
    residual = {"residual": changes.pop("residual")} if "residual" in changes else {}
    return archetype.load_spec(data | residual | {"layers": [{"repeat": 3, "block": block | changes}]})


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "a mixer derived from attention": (Scaled, ScaledModule, {"mixer": {"kind": "scaled_attention", "num_heads": 3}}),
    "a content that grows with its layer": (Deepening, DeepeningModule, {"feedforward": "deepening"}),
    "a wiring with weights of its own": (Mixed, MixedBlock, {"wiring": "mixed"}),
    "residual streams": (Streams, StreamsModule, {"residual": "three_streams"}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_declares_no_cost_is_counted_as_it_is_built(case: str) -> None:
    """Parameters, products of a pass, and the drawing's boxes."""
    kind, module, changes = CASES[case]
    archetype.register(kind, module=module)
    described = model(**changes)
    built, report = archetype.build(described), archetype.cost_report(described, batch=2, length=16)
    assert report.parameters["total"] == sum(parameter.numel() for parameter in built.parameters())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        built(torch.zeros(2, 16, dtype=torch.long))
    assert report.flops["forward"] == counter.get_total_flops()
    boxes = archetype.draw(described, batch=2, length=16).scene.boxes
    assert sum(box.cost.parameters for box in boxes) == report.parameters["total"]
    assert sum(box.cost.flops for box in boxes) == report.flops["forward"]


def test_equal_layers_are_still_counted_together() -> None:
    archetype.register(Scaled, module=ScaledModule)
    report = archetype.cost_report(model(mixer={"kind": "scaled_attention", "num_heads": 3}))
    assert {row.layers for row in report.rows if row.in_block} == {3}


class ScaledCost(AttentionCost):
    def parameters(self) -> Counts:
        return super().parameters() | {"scale": self.d}


def test_a_cost_that_its_module_denies_is_refused() -> None:
    """That of its base counts no scale; one that does is believed."""
    archetype.register(Scaled, module=ScaledModule, cost=AttentionCost)
    described = model(mixer={"kind": "scaled_attention", "num_heads": 3})
    with pytest.raises(SpecError, match=r"blocks\.0\.mixer: its cost formula counts 2,304 .* module has 2,328;"):
        archetype.cost_report(described)
    archetype.register(Scaled, module=ScaledModule, cost=ScaledCost)
    built = archetype.build(described)
    assert archetype.cost_report(described).parameters["total"] == sum(one.numel() for one in built.parameters())


def test_arms_are_matched_by_what_is_built() -> None:
    """The width that a control needs to have as many parameters as a model with a part from outside."""
    archetype.register(Mixed, module=MixedBlock)
    other = model(wiring="mixed")
    narrower = match(model(), other, "parameters")
    assert narrower.target == sum(parameter.numel() for parameter in archetype.build(other).parameters())
    assert narrower.amount == sum(parameter.numel() for parameter in archetype.build(narrower.spec).parameters())  # type: ignore[arg-type]
