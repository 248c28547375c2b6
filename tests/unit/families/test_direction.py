"""An encoder is a published decoder read in both directions only where every layer can be."""

import pytest

import archetype
from archetype import spec
from archetype.errors import CheckpointError
from archetype.families.direction import as_decoder
from archetype.families.registry import family_for
from tests.helpers.combinations import PATTERNS, POSITIONS

CASES = [*((pattern, "rotary") for pattern in PATTERNS), *(("full", position) for position in POSITIONS)]


@pytest.mark.parametrize(("pattern", "position"), CASES)
def test_every_family_is_asked_of_an_encoder_without_a_trace(pattern: str, position: str) -> None:
    mixer = spec.Attention(num_heads=2, pattern=PATTERNS[pattern], position=POSITIONS[position])
    model = archetype.load_spec("bert-tiny")
    assert isinstance(model, spec.Encoder)
    layers = tuple(block.replace(mixer=mixer) for block in model.layers)
    model = model.replace(layers=layers, pooler=False, head=spec.LanguageModelHead(tied=True, bias=False))
    both_ways = pattern == "full" and position not in ("alibi", "relative")
    assert (as_decoder(model).kind == "decoder") == both_ways
    try:
        family_for(model)
    except CheckpointError as error:
        assert str(error)
