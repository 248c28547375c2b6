"""Activations that are computed twice change no bit; a compiled block computes what the plain one does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.errors import SpecError
from archetype.models.build import build
from archetype.native.kernels import plain_operations
from archetype.nn.context import ForwardContext
from archetype.training.block_execution import stacks_of
from archetype.training.loop import take_step
from archetype.training.recipe import Recipe
from archetype.training.setup import start
from tests.helpers.recipes import recipes
from tests.helpers.specs import block, decoder

CPU = torch.device("cpu")


def test_recomputed_blocks_change_no_bit_of_any_model(tmp_path: Path) -> None:
    """With dropout, running statistics and losses of experts; each twice, for what one step leaves to the next."""
    num_recomputed = 0
    for name, recipe in recipes(tmp_path).items():
        plain, recomputed = (
            start(tmp_path / f"{name} {kind}", recipe.replace(recompute=kind, micro_batch_size=9), CPU)
            for kind in ("none", "blocks")
        )
        num_recomputed += sum(stack.num_recomputed for stack in stacks_of(recomputed.model))
        for _ in range(2):
            expected, step = take_step(plain), take_step(recomputed)
            assert (step.loss, step.gradient_norm) == (expected.loss, expected.gradient_norm), name
        state, other = plain.model.state_dict(), recomputed.model.state_dict()
        assert state.keys() == other.keys() and all(torch.equal(state[key], other[key]) for key in state), name
    assert num_recomputed > 15


def test_a_number_of_blocks_is_recomputed_and_more_than_there_are_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    model = start(tmp_path / "run", recipe.replace(recompute=1), CPU).model
    assert [(stack.num_recomputed, len(stack.blocks)) for stack in stacks_of(model)] == [(1, 2)]
    with pytest.raises(SpecError, match="recompute: 3 is more than the 2 blocks; use blocks for all of them"):
        start(tmp_path / "other", recipe.replace(recompute=3), CPU)


def test_recomputed_blocks_hold_their_inputs_only(tmp_path: Path, recipe: Recipe) -> None:
    saved = {}
    for kind in ("none", "blocks"):
        state = start(tmp_path / kind, recipe.replace(recompute=kind), CPU)
        sizes: list[int] = []
        saving = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.nbytes) or tensor, lambda tensor: tensor
        )
        with plain_operations(), saving:  # of which blocks save more, so that what else is saved weighs less
            state.objective.compute_loss(state.model, state.objective.batch(0))
        saved[kind] = sum(sizes)
    assert saved["blocks"] < 0.4 * saved["none"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # of torch's own compiler, as the next
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_blocks_compute_what_plain_ones_do(tmp_path: Path, recipe: Recipe) -> None:
    spec = {**recipe.spec, "layers": [{**layer["block"], "dropout": 0.0} for layer in recipe.spec["layers"]]}  # type: ignore[dict-item, union-attr]
    spec["layers"][0]["mixer"] = {**spec["layers"][0]["mixer"], "dropout": 0.0}
    for recompute in ("none", "blocks"):
        plain, compiled = (
            start(tmp_path / f"{kind} {recompute}", recipe.replace(spec=spec, compile=kind, recompute=recompute), CPU)
            for kind in (False, True)
        )
        for _ in range(3):
            expected, step = take_step(plain), take_step(compiled)
            assert step.loss == pytest.approx(expected.loss, rel=1e-5)
            assert step.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)


class Unread:
    """An index of a layer that nothing may look at."""

    def __sub__(self, other: object) -> int:
        raise AssertionError("the index of the layer is read")

    __hash__ = None  # type: ignore[assignment]


@torch.no_grad()
def test_plain_blocks_do_not_read_the_index_of_their_layer() -> None:
    """Else torch compiles a block for each index, and leaves those from the ninth on as they are."""
    model: Any = build(decoder(block()))
    x = torch.randn(2, 6, 16)
    context = ForwardContext.of(x)
    context.sources, context.layer = frozenset(), Unread()  # type: ignore[assignment]
    assert model.blocks[0](x, context).shape == x.shape
