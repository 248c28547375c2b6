"""Specification of MegaByte."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import CausalSpec
from archetype.models.stack.spec import SizedStack, StackView
from archetype.parts.head.spec import LanguageModelHead
from archetype.roles.head import NextTokenHead
from archetype.spec.base import Size, WideSize
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Context


@part
class MegaByte(CausalSpec):
    """Global model over patches of `patch_size` bytes, and local model over the bytes of each patch (Yu 2023).

    The global model reads patches; each byte embedding has 1 / patch_size of the global width. In the local model, byte
    embeddings have the local width, and a projection of the global model's output is added to them.

    Attributes:
        vocab_size: number of byte values, V.
        context_length: maximum sequence length in bytes.
        patch_size: bytes per patch, J.
        global_model: stack over patches.
        local_model: stack over the bytes of a patch.
        head: head that reads the final vectors.
        initialization: initialization of the weights.
    """

    letters: ClassVar[Mapping[str, str]] = {"T": "bytes of a sequence"}
    kind: Literal["megabyte"] = "megabyte"
    vocab_size: WideSize = 256
    context_length: Context
    patch_size: Size
    global_model: SizedStack
    local_model: SizedStack
    head: NextTokenHead = LanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        sides = (("global_model.", self.global_model), ("local_model.", self.local_model))
        return tuple(
            StackView(prefix, side.layers, side.final_norm, side.d_model, causal=True, residual=side.residual)
            for prefix, side in sides
        )

    @model_validator(mode="after")
    def _patches_divide(self) -> "MegaByte":
        widths = (("global_model.d_model", self.global_model.d_model), ("context_length", self.context_length))
        for name, size in widths:
            if size % self.patch_size:
                cause = f"patch_size {self.patch_size} does not divide {size}"
                invalid(name, cause, f"use a multiple, such as {-(-size // self.patch_size) * self.patch_size}")
        return self
