"""Small models with random weights, as `lm.trace` and `lm.inspect` look at them."""

from archetype.inspection import Inspection, Tracer
from archetype.inspection.inputs import Inputs
from archetype.models.build import Model
from tests.helpers.inputs import example_inputs


def inputs(model: Model, rows: int = 1, seed: int = 0) -> Inputs:
    """Random tokens or pixels of a model."""
    arguments = {name: x.to(model.dtype) if x.is_floating_point() else x
                 for name, x in example_inputs(model.spec, seed, rows).items()}  # fmt: skip
    ids = arguments.get("tokens", arguments.get("target"))
    count = model.spec.context_length if ids is None else ids.shape[1]
    names = tuple(str(id) for id in (range(count) if ids is None else ids[0].tolist()))
    sources = tuple(str(id) for id in arguments["source"][0].tolist()) if "source" in arguments else ()
    return Inputs(arguments, names, sources, ids)


def tracer(model: Model, rows: int = 1, seed: int = 0) -> Tracer:
    """A pass over random inputs."""
    return Tracer(model, inputs(model, rows, seed))


def inspection(model: Model, rows: int = 1, seed: int = 0) -> Inspection:
    """All views of one."""
    return Inspection(tracer(model, rows, seed).run())
