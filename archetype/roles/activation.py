"""The role of activations: functions between projections, most of them elementwise and without parameters."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part


class Activation(Part):
    """Base class of activations.

    Its module is constructed as `Module(spec)`, or is a function that takes the specification and returns a function.
    It is called `(x) -> y` with a tensor of any shape. A kind without further fields is written as a word: `activation:
    silu`.

    Unless a kind says otherwise, each element of y depends only on the same element of x and on no parameters, so that
    experts can share one activation and processes can divide its elements. A kind that `is_fixed: False` has a module
    with parameters, and is only used in feed-forward networks.
    """

    needs: ClassVar[str] = "module"
    is_word: ClassVar[bool] = True
    num_saved: ClassVar[int] = 1  # tensors as large as x that autograd saves besides y; 0 if y is enough
    gate_kernel: ClassVar[str] = ""  # operation that computes f(gate) * up; empty: torch's own
    is_fixed: ClassVar[bool] = True  # whether it is elementwise and has no parameters
    num_parameters: ClassVar[int] = 0


AnyActivation = Annotated[Activation, ByKind(Activation)]
FixedActivation = Annotated[Activation, ByKind(Activation, "is_fixed")]
