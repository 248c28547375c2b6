"""Diagrams of blocks: how each wiring connects sublayers to the stream."""

from archetype.models.block import spec
from archetype.parts.attention.diagram import cross_attention
from archetype.roles.drawing import Branch, DrawInside, branch_of
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer


def contents(block: spec.Block) -> dict[str, tuple[Mixer | FeedForward, DrawInside | None]]:
    """Return a block's parts by name, each with a function that draws it (None: the function of its kind)."""
    return {name: (part, cross_attention if name == "cross" else None) for name, part in block.contents.items()}


@branch_of(spec.PreNorm)
def pre_norm(wiring: spec.PreNorm) -> Branch:
    return Branch(before="norm")


@branch_of(spec.PostNorm)
def post_norm(wiring: spec.PostNorm) -> Branch:
    return Branch(behind="norm")


@branch_of(spec.SandwichNorm, spec.Laurel)
def sandwich_norm(wiring: spec.SandwichNorm) -> Branch:
    return Branch(before="norm", after="post_norm")


@branch_of(spec.Interpolated)
def interpolated(wiring: spec.Interpolated) -> Branch:
    return Branch(before="norm", after="post_norm")


@branch_of(spec.OutputNorm)
def output_norm(wiring: spec.OutputNorm) -> Branch:
    return Branch(after="norm")


@branch_of(spec.ParallelResidual)
def parallel_residual(wiring: spec.ParallelResidual) -> Branch:
    return Branch(before="norm", parallel=True, shared_norm=wiring.shared_norm)


@branch_of(spec.Plain)
def plain(wiring: spec.Plain) -> Branch:
    return Branch(residual=False)
