"""Models compute on a device other than the CPU, without one: PyTorch's meta device has shapes and no values.

A tensor made on the CPU cannot be combined with those of the model there, and no value can be read on the host. The
sizes of experts are the only values that a pass reads, once per layer.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import archetype
from archetype import spec
from archetype.families import preset
from archetype.models.build import build_on_meta
from archetype.models.causal import CausalModel
from archetype.parts.experts.module import Experts
from tests.helpers.examples import every
from tests.helpers.inputs import example_inputs
from tests.helpers.passes import logits_or_hidden

PRESETS = [
    name if name.endswith("-tiny") else pytest.param(name, marks=pytest.mark.slow)
    for name in archetype.presets()
    if not isinstance(preset(name), spec.NGram)  # counts instead of gradients
    and preset(name).num_layers <= 32
]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Readings of expert sizes, which are equal shares here."""
    read = []

    def even(choices: Tensor, minlength: int) -> Tensor:
        read.append(minlength)
        sizes = torch.full((minlength,), len(choices) // minlength)
        sizes[: len(choices) % minlength] += 1
        return sizes

    monkeypatch.setattr(torch, "bincount", even)
    return read


@pytest.mark.parametrize("name", every(3, PRESETS))
def test_a_step_of_training_and_of_decoding_reads_no_value(name: str, reads: list[int]) -> None:
    specification = preset(name)
    model = build_on_meta(specification)
    num_mixtures = sum(isinstance(module, Experts) for module in model.modules())
    inputs = {name: tensor.to("meta") for name, tensor in example_inputs(specification).items()}
    output = model.train()(**inputs)
    loss = logits_or_hidden(output).float().mean()
    loss = loss if output.aux_loss is None else loss + output.aux_loss  # which trains what selects keys
    loss.backward()
    # the loss here has no further tokens
    assert all(p.grad is not None for name, p in model.named_parameters() if not name.startswith("further_tokens."))
    assert len(reads) <= num_mixtures
    # MegaByte asks in each step whether a patch is complete, which saves most steps of its global model
    if isinstance(model, CausalModel) and output.logits is not None and not isinstance(specification, spec.MegaByte):
        decode(model.eval(), inputs["tokens"])


def decode(model: Any, tokens: Tensor) -> None:
    with torch.inference_mode():
        state = model.new_state(len(tokens), 32)
        model(tokens, state)
        assert model(tokens[:, :1], state).logits.device.type == "meta"


def test_a_value_read_on_the_host_fails() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones(3, device="meta").sum().item()
    with pytest.raises(RuntimeError):
        torch.ones(3, device="meta") + torch.ones(3)
