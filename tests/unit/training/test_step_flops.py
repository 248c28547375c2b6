"""FLOPs of steps of which only a part learns: torch counts them on the meta device, product by product."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from archetype.convert.source import open_spec
from archetype.training.memory import StepMemoryCost
from archetype.training.recipe import Recipe
from archetype.training.step_flops import step_flops
from tests.helpers.examples import every

ROWS, LENGTH = 3, 64
DATA = {"kind": "corpus", "text": ["a.txt"]}
# the gradient of what the first block reads, which nothing asks for, is counted; that of a head's bias is not
LEFT_OUT = 0.07


def counted(recipe: Recipe) -> int:
    spec = open_spec(recipe.spec)
    model = StepMemoryCost(recipe, spec).model.train()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(ROWS, LENGTH, dtype=torch.long, device="meta")).logits.sum().backward()
    return counter.get_total_flops()


def recipe_of(preset: str, **part: Any) -> Recipe:
    return Recipe.parse({"spec": open_spec(preset).dump(), "data": DATA, "dtype": "float32", **part})


def said(recipe: Recipe) -> float:
    return step_flops(recipe, open_spec(recipe.spec), ROWS, LENGTH)


@pytest.mark.parametrize("preset", every(2, ["llama-tiny", "gpt2-tiny", "qwen3-tiny", "gemma3-tiny", "bert-tiny"]))
def test_flops_are_those_of_the_products_that_torch_makes(preset: str) -> None:
    whole = recipe_of(preset)
    for exact in (whole, recipe_of(preset, trainable=["*norm*"])):
        assert said(exact) == counted(exact)
    for close in (recipe_of(preset, trainable=["blocks.1.*"]), recipe_of(preset, adapter={"rank": 8})):
        assert said(close) == pytest.approx(counted(close), rel=LEFT_OUT)
        assert said(close) < 0.85 * said(whole)


def test_a_head_that_learns_alone_needs_no_gradient_of_the_blocks() -> None:
    recipe = recipe_of("llama-tiny", trainable=["lm_head.*"])
    assert said(recipe) == counted(recipe)
