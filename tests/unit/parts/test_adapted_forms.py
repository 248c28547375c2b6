"""An adapter is obeyed in every form of a pass: of whole texts, step by step, and where a matrix is read by itself."""

from typing import Any

import pytest
import torch

import archetype
from archetype import spec
from archetype.parts.adapter.module import adapter_parameters, install, merge
from tests.helpers.weights import distance, randomize

EXACT, WRONG = 1e-9, 1e-3


def with_position(position: Any) -> spec.ModelSpec:
    data = archetype.load_spec("llama-tiny").dump()
    data["layers"][0]["block"]["mixer"]["position"] = position
    return archetype.load_spec(data)


MODELS = {
    "latent attention": archetype.load_spec("deepseek-v2-tiny"),
    "one query among distances": with_position({"kind": "transformer_xl"}),
    "a scan": archetype.load_spec("mamba-tiny"),
}


@pytest.mark.parametrize("described", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("kind", [spec.LoRA, spec.DoRA])
@torch.no_grad()
def test_an_adapter_is_obeyed_in_every_form_of_a_pass(described: spec.ModelSpec, kind: Any) -> None:
    model = randomize(archetype.build(described, dtype=torch.float64)).eval().requires_grad_(False)
    tokens = torch.arange(1, 13)[None]
    before = model(tokens).logits
    install(model, kind(rank=3, alpha=6, targets=("*",)))
    changed = adapter_parameters(model)
    for name, parameter in model.named_parameters():
        if name in changed:
            parameter.normal_(1.0 if "magnitude" in name else 0.0, 0.3)
    whole, state, steps = model(tokens).logits, model.new_state(1, 12), []
    for token in tokens.unbind(1):
        output = model(token[:, None], state)
        state = output.state
        steps.append(output.logits)
    assert distance(whole, before) > WRONG
    assert distance(torch.cat(steps, 1), whole) < EXACT
    merge(model)
    assert distance(model(tokens).logits, whole) < EXACT
