"""The work for each layer does not grow with the number of layers: calls of Python functions are counted."""

import cProfile
import pstats
from collections.abc import Callable

import pytest

import archetype
from archetype.families.llama import llama
from archetype.spec import Decoder


def uneven(num_layers: int) -> Decoder:
    """Return a specification whose layers all differ, in the width of the feed-forward."""
    spec = llama(context_length=64, vocab_size=64, d_model=16, d_ff=32, num_layers=num_layers, num_heads=2, tied=True)
    data = spec.dump(each_layer=True)
    for index, layer in enumerate(data["layers"]):
        layer["feedforward"]["d_ff"] = 32 + index
    return archetype.load_spec(data)  # type: ignore[return-value]


def calls(compute: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(compute)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    "verb",
    [
        lambda spec: archetype.build(spec, device="meta"),
        lambda spec: archetype.cost_report(spec, batch=1, length=64),
        lambda spec: archetype.load_spec(spec.dump()),
        lambda spec: archetype.draw(spec),
    ],
    ids=["build", "cost", "read", "draw"],
)
def test_calls_grow_linearly_with_layers(verb: Callable[[Decoder], object]) -> None:
    specs = [uneven(count) for count in (66, 75, 84)]  # repetitions have up to 64 layers
    verb(specs[0])  # imports and caches
    few, more, many = (calls(lambda spec=spec: verb(spec)) for spec in specs)  # type: ignore[misc]
    assert many - more <= 1.05 * (more - few)
