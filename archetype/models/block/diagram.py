"""Diagrams of blocks: how each wiring connects sublayers to the stream."""

from archetype.models.block import spec
from archetype.parts.attention.diagram import cross_attention
from archetype.roles.drawing import Branch, DrawInside
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer
from archetype.spec.registry import provides


def contents(block: spec.Block) -> dict[str, tuple[Mixer | FeedForward, DrawInside | None]]:
    """Return a block's parts by name, each with a function that draws it (None: the function of its kind)."""
    return {name: (part, cross_attention if name == "cross" else None) for name, part in block.contents.items()}


provides("diagram", spec.PreNorm)(lambda wiring: Branch(before="norm"))
provides("diagram", spec.PostNorm)(lambda wiring: Branch(behind="norm"))
provides("diagram", spec.SandwichNorm, spec.Interpolated, spec.Laurel)(
    lambda wiring: Branch(before="norm", after="post_norm")
)
provides("diagram", spec.OutputNorm)(lambda wiring: Branch(after="norm"))
provides("diagram", spec.Plain)(lambda wiring: Branch(residual=False))


@provides("diagram", spec.ParallelResidual)
def parallel_residual(wiring: spec.ParallelResidual) -> Branch:
    return Branch(before="norm", parallel=True, shared_norm=wiring.shared_norm)
