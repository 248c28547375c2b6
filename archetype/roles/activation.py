"""The role of activations: functions of single numbers, between the projections of a network."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part

__all__ = ["Activation"]


class Activation(Part):
    """Base of all activations.

    Its module is made as `Module(spec)`, or is a function of the specification that returns another, and is called
    `(x) -> y` with a tensor of any shape. A file names a kind without other fields by a word: `activation: silu`.

    Each number of y depends on the number at its place in x alone, and on no parameter: experts share one activation.
    """

    needs: ClassVar[str] = "module"
    is_word: ClassVar[bool] = True
    num_saved: ClassVar[int] = 1  # tensors as large as x that autograd keeps beside y; 0 where y gives the derivative
    gate_kernel: ClassVar[str] = ""  # name of the operation that computes f(gate) * up; empty where torch's own do


AnyActivation = Annotated[Activation, ByKind(Activation)]
