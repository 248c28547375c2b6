"""What a layer leaves for later ones: by its place in the stack, with gradients, and in every way of computing it."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from jaxtyping import config as jaxtyping
from torch import Tensor, nn

from archetype import spec
from archetype.generate.step import DecodeStep
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.spec.registry import PROVIDED
from archetype.training.block_execution import compile_blocks, recompute_blocks
from tests.helpers.weights import distance, randomize

D, T = 8, 6
TOKENS = torch.randint(0, 11, (2, T), generator=torch.Generator().manual_seed(0))


class Relay(spec.Mixer):
    """x W, which it leaves, times what an earlier layer left."""

    kind: Literal["relay"] = "relay"
    reads: int | None = None

    def source(self, layer: int) -> int | None:
        return self.reads

    @property
    def own(self) -> "Relay":
        return self.replace(reads=None)

    def check_source(self, source: spec.Mixer, width: int) -> None:
        assert isinstance(source, Relay)  # any leaves something


class RelayMixer(nn.Module):
    def __init__(self, mixer: Relay, place: Place) -> None:
        super().__init__()
        self.reads, self.weight = mixer.reads, nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        y: Tensor = self.weight(x)
        context.leave(y)
        return y if self.reads is None else y * context.left_by(self.reads)

    def new_state(self, *sizes: Any) -> LayerState:
        return LayerState()


@pytest.fixture(autouse=True)
def relay() -> Iterator[None]:
    """The mixer, while a test runs."""
    spec.part(Relay)
    module_for(Relay)(RelayMixer)
    yield
    del spec.Mixer.kinds["relay"], PROVIDED["module", Relay]


def model(*reads: int | None, weights_of: int | None = None, then: tuple[int, ...] = ()) -> nn.Module:
    wiring = spec.PreNorm(norm=spec.RMSNorm())
    blocks = [spec.Block(wiring=wiring, mixer=Relay(reads=layer)) for layer in (*reads, *then)]
    if weights_of is not None:
        blocks.insert(len(reads), blocks[weights_of].replace(weights_of=weights_of))
    layers = tuple(blocks)
    decoder = spec.Decoder(vocab_size=11, context_length=T, d_model=D, layers=layers, final_norm=spec.RMSNorm())
    return randomize(build(decoder))


def expected(built: nn.Module, layers: list[tuple[int, int | None]]) -> Tensor:
    """Logits computed here, of layers by the index of their weights and of the layer that they read."""
    x, left = built.embedding(TOKENS, context := ForwardContext.of(TOKENS)), []
    for index, reads in layers:
        block = built.blocks[index]
        y = block.mixer.weight(block.mixer_norm(x, context))
        left.append(y)
        x = x + (y if reads is None else y * left[reads])
    return built.lm_head(built.final_norm(x, context), built.lm_head.weight)


def test_layers_read_what_each_earlier_one_left() -> None:
    built = model(None, 0, 1, 0)
    for _ in range(2):  # a pass leaves nothing for the next
        assert torch.equal(built(TOKENS).logits, expected(built, [(0, None), (1, 0), (2, 1), (3, 0)]))
    assert distance(built(TOKENS).logits, expected(built, [(0, None), (1, 0), (2, 0), (3, 0)])) > 1e-3


def test_a_layer_with_the_weights_of_another_leaves_at_its_own_place() -> None:
    built = model(None, 0, weights_of=0, then=(2,))
    assert torch.equal(built(TOKENS).logits, expected(built, [(0, None), (1, 0), (0, None), (3, 2)]))
    context = ForwardContext.of(TOKENS)
    built.run(built.embedding(TOKENS, context), context)
    assert sorted(context.left) == [0, 2] and not torch.equal(context.left[0], context.left[2])


def test_what_nobody_reads_is_not_kept() -> None:
    built, context = model(None, None, 1, None), ForwardContext.of(TOKENS)
    built.run(built.embedding(TOKENS, context), context)
    assert sorted(context.left) == [1]


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="reads layer 1, which is not before layer 0; name an earlier layer"):
        model(1, None)
    context = ForwardContext.of(TOKENS)
    context.leave(TOKENS)
    assert context.left_by(0) is TOKENS  # outside of a stack nobody knows who reads
    context.sources, context.left = frozenset(), {}
    context.leave(TOKENS)
    with pytest.raises(AssertionError, match="layer 0 has left nothing for layer 0"):
        context.left_by(0)


@pytest.mark.parametrize("recompute", [1, 2, "blocks"])
def test_recomputed_layers_give_and_take_the_same_gradients(recompute: Any) -> None:
    gradients = []
    for how in ("none", recompute):
        built = model(None, 0, 0).train()
        recompute_blocks(built, how)
        built(TOKENS).logits.square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in built.named_parameters()})
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_a_recorded_step_goes_on_as_a_whole_text() -> None:
    built = model(None, 0, 1).requires_grad_(False)
    logits, step = built(TOKENS).logits, DecodeStep(built, built.new_state(2))
    for place in range(T):
        assert distance(step(TOKENS[:, place : place + 1]), logits[:, place]) < 1e-5
    assert step.replay is not None or step._library is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # of torch's own compiler, as the next
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_layers_leave_what_eager_ones_do() -> None:
    jaxtyping.update("jaxtyping_disable", True)  # the compiler would go through the checks of shapes
    built = model(None, 0, 1, 0)
    logits = built(TOKENS).logits
    compile_blocks(built)
    assert distance(built(TOKENS).logits, logits) < 1e-5
    assert distance(built(TOKENS).logits, logits) < 1e-5
