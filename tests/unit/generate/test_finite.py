"""Generation from weights that hold NaN or infinity stops with one line that names the layer."""

import pytest
import torch

from archetype import families, spec
from archetype.errors import CheckpointError
from archetype.generate import Beam, Sampling, beam_search
from archetype.generate.finite import check_finite, first_not_finite
from archetype.models.build import Model, build
from tests.helpers.causal import decoded

PREFIX = "logits: the first NaN or infinite number is computed by "
REMEDY = "; check the weights there, or compute in float32"


def damaged(name: str, parameter: str, value: float) -> Model:
    """A preset's model with one bad number."""
    model = build(families.preset(name)).eval().requires_grad_(False)
    model.get_parameter(parameter).view(-1)[3] = value
    return model


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_first_bad_layer_is_named(temperature: float) -> None:
    cases = [
        ("llama-tiny", "blocks.1.mixer.k.weight", float("nan"), "blocks.1.mixer.k"),
        ("llama-tiny", "blocks.0.feedforward_norm.weight", float("inf"), "blocks.0.feedforward_norm"),
        ("gpt2-tiny", "final_norm.weight", float("nan"), "final_norm"),
        ("mamba-tiny", "blocks.0.mixer.A_log", float("nan"), "blocks.0.mixer"),
        ("megabyte-tiny", "local_model.blocks.0.mixer.o.weight", float("nan"), "local_model.blocks.0.mixer.o"),
    ]
    for name, parameter, value, layer in cases:
        model = damaged(name, parameter, value)
        with pytest.raises(CheckpointError) as refused:
            decoded(model, [[1, 2, 3], [4]], Sampling(temperature=temperature, max_new_tokens=3))
        assert str(refused.value) == PREFIX + layer + REMEDY


def test_a_beam_search_names_it_too() -> None:
    model = damaged("transformer-tiny", "encoder.blocks.0.mixer.v.weight", float("nan"))
    with pytest.raises(CheckpointError) as refused:
        beam_search(model, [[1, 2, 3]], 0, 1, Beam(num_beams=2, max_extra_tokens=3))
    assert str(refused.value) == PREFIX + "encoder.blocks.0.mixer.v" + REMEDY


def test_finite_logits_are_not_read_a_second_time() -> None:
    def never() -> None:
        raise AssertionError

    check_finite(torch.full((2, 9), 3e38), torch.nn.Identity(), never)  # whose sum is infinite
    model = build(families.preset("llama-tiny"))
    assert first_not_finite(model, lambda: model(torch.tensor([[1, 2]]))) == ""
    assert isinstance(model.spec, spec.Decoder) and not any(module._forward_hooks for module in model.modules())
