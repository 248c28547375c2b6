"""Diagrams of blocks: how each wiring connects sublayers to the stream."""

from archetype.models.block.spec import (
    Block,
    Interpolated,
    OutputNorm,
    ParallelResidual,
    Plain,
    PostNorm,
    PreNorm,
    SandwichNorm,
)
from archetype.parts.attention.diagram import cross_attention
from archetype.roles.drawing import Branch, DrawInside, branch_of
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer


def contents(block: Block) -> dict[str, tuple[Mixer | FeedForward, DrawInside | None]]:
    """Return a block's parts by name, each with a function that draws it (None: the function of its kind)."""
    return {name: (part, cross_attention if name == "cross" else None) for name, part in block.contents.items()}


@branch_of(PreNorm)
def pre_norm(wiring: PreNorm) -> Branch:
    return Branch(before="norm")


@branch_of(PostNorm)
def post_norm(wiring: PostNorm) -> Branch:
    return Branch(behind="norm")


@branch_of(SandwichNorm)
def sandwich_norm(wiring: SandwichNorm) -> Branch:
    return Branch(before="norm", after="post_norm")


@branch_of(Interpolated)
def interpolated(wiring: Interpolated) -> Branch:
    return Branch(before="norm", after="post_norm")


@branch_of(OutputNorm)
def output_norm(wiring: OutputNorm) -> Branch:
    return Branch(after="norm")


@branch_of(ParallelResidual)
def parallel_residual(wiring: ParallelResidual) -> Branch:
    return Branch(before="norm", parallel=True, shared_norm=wiring.shared_norm)


@branch_of(Plain)
def plain(wiring: Plain) -> Branch:
    return Branch(residual=False)
