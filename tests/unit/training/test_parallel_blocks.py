"""Layers that share weights, and contents side by side, train in many processes as in one, or are refused."""

from pathlib import Path
from typing import Any

import pytest

from archetype.errors import SpecError
from archetype.spec import parse
from archetype.training.parallel.layout import Parallel
from archetype.training.processes import ALONE
from archetype.training.recipe import Recipe
from tests.helpers.parallel import train_in, train_one
from tests.unit.training.test_parallel import check_equal

NORM: dict[str, Any] = {"kind": "rms"}
ATTENTION = {"kind": "attention", "num_heads": 2, "position": {"kind": "rotary"}}
MLP = {"kind": "mlp", "d_ff": 24, "activation": "silu"}
GATED = {"kind": "gated", "d_ff": 16, "activation": "silu"}
BLOCK = {
    "wiring": {"kind": "pre_norm", "norm": NORM, "feedforward_norm": {"kind": "layer"}},
    "mixer": {"kind": "together", "parts": [ATTENTION, {**ATTENTION, "pattern": {"kind": "window", "size": 4}}]},
    "feedforward": {"kind": "together", "parts": [MLP, GATED], "scales": [0.5, 2.0]},
}  # fmt: skip
LOOP = {"repeat": 2, "shared": True, "reinject": True, "block": BLOCK}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {}, "fsdp": {"shard": 2}, "tensor": {"tensor": 2}, "context": {"context": 2}, "stages": {"pipeline": 2},
}  # fmt: skip


def looped(recipe: Recipe, layers: list[Any], **changes: Any) -> Recipe:
    spec = {"context_length": 16, "d_model": 16, "layers": layers, "final_norm": NORM}
    sizes = {"batch_size": 8, "micro_batch_size": 2, "steps": 4, "dtype": "float32"}
    return recipe.replace(spec=spec, **sizes, **changes)


@pytest.mark.slow
def test_shared_layers_and_contents_side_by_side_train_as_in_one_process(recipe: Recipe, tmp_path: Path) -> None:
    recipe = looped(recipe.replace(evaluate_every=2, checkpoint_every=2), [LOOP, LOOP])
    train_one((str(tmp_path / "alone"), recipe, {}), ALONE)
    train_in(2, [(str(tmp_path / name), recipe.replace(parallel=Parallel(**sizes)), {})
                 for name, sizes in LAYOUTS.items()])  # fmt: skip
    for name in LAYOUTS:
        check_equal(tmp_path / name, tmp_path / "alone")


MAMBA = {"kind": "mamba", "state_size": 4}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "parallel.pipeline: layer 2 uses the weights of layer 0, which is in another stage; set parallel.pipeline to 1": (
        {"repeat": 4, "shared": True, "block": BLOCK}, {"pipeline": 2}
    ),
    "parallel.tensor: 4 does not divide the 2 of layers[0].mixer.parts[0].num_heads; use 2 or 1": (
        LOOP, {"tensor": 4}
    ),
    "layers[0].mixer.parts[1]: mamba reads sequences in order": (
        LOOP | {"block": BLOCK | {"mixer": {"kind": "together", "parts": [ATTENTION, MAMBA]}}}, {"context": 2}
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_named(recipe: Recipe, message: str) -> None:
    layers, sizes = REFUSED[message]
    recipe = looped(recipe, [layers])
    assert isinstance(recipe.spec, dict)
    with pytest.raises(SpecError) as caught:
        Parallel(**sizes).for_world(max(sizes.values())).check(parse({"vocab_size": 256} | recipe.spec), recipe)
    assert str(caught.value).startswith(message)
