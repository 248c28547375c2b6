"""The shapes in signatures are checked while these tests run, or they would be no more than comments."""

import pytest
import torch
from jaxtyping import TypeCheckError

from archetype import spec
from archetype.nn.registry import build_position


@pytest.mark.parametrize("wrong", [torch.zeros(3, dtype=torch.long), torch.zeros(1, 3)])
def test_a_call_that_contradicts_its_signature_is_refused(wrong: torch.Tensor) -> None:
    part = build_position(spec.Sinusoidal(), 8, 4)
    with pytest.raises(TypeCheckError):
        part(wrong)
