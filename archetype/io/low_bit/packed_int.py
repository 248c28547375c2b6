"""Integers of 1 to 8 bits, packed in 32-bit words as in compressed-tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archetype.errors import CheckpointError
from archetype.io.low_bit.scheme import Names, Scheme, Shape
from archetype.io.weight_files import TensorHeader

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class PackedInt(Scheme):
    """Matrix of `bits`-bit integers, packed along its inputs, with a scale per group of inputs, per row, or in total.

    Integers and zero points are signed, and are stored with half of their range added. Zero points are packed along the
    outputs. Weights are computed in the dtype of the scales.
    """

    bits: int
    names = (
        Names(
            ".weight",
            {"weight": ".weight_packed", "scale": ".weight_scale"},
            {"shape": ".weight_shape", "zeros": ".weight_zero_point", "groups": ".weight_g_idx"},
        ),
    )

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        weight, scale, zeros = stored["weight"], stored["scale"].shape, stored.get("zeros")
        if weight.dtype != "I32" or len(weight.shape) < 2:
            return None
        *stack, rows, words = weight.shape
        inputs, groups = words * 32 // self.bits, scale[-1] if scale else 1
        if scale not in ((*stack, rows, groups), (*stack, 1), ()) or not groups:
            return None
        if zeros is not None and zeros.shape != (*stack, -(-rows * self.bits // 32), groups):
            return None
        return (*stack, rows, inputs) if "groups" in stored or inputs % groups == 0 else None

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        from archetype.io.low_bit.bits import unpack

        half, scale = 1 << (self.bits - 1), stored["scale"]
        values = unpack(stored["weight"][first:last], self.bits) - half
        self._check(stored, values.shape[1])
        scale = scale[first:last] if scale.ndim == 2 else scale.reshape(1, 1)
        groups = self._groups(stored, values.shape[1], scale.shape[1])
        values = values.to(scale.dtype)
        if "zeros" in stored:
            zeros = unpack(stored["zeros"].t(), self.bits)[:, first:last].t() - half
            values = values - zeros.to(scale.dtype)[:, groups]
        return values * scale[:, groups]

    def _groups(self, stored: Mapping[str, Tensor], inputs: int, groups: int) -> Tensor:
        import torch

        order = stored.get("groups")  # group of each input
        if order is None or int(order.min()) < 0:  # -1: groups of consecutive inputs
            return torch.arange(inputs) // (inputs // groups)
        if order.shape != (inputs,) or int(order.max()) >= groups:
            raise CheckpointError("weight_g_idx", f"refers to a group beyond the {groups}", "download it again")
        return order.long()

    def _check(self, stored: Mapping[str, Tensor], inputs: int) -> None:
        # the stored shape may have fewer inputs than the words hold
        if "shape" in stored and int(stored["shape"][-1]) != inputs:
            cause = f"has {int(stored['shape'][-1])} inputs, which do not fill words of 32 bits"
            raise CheckpointError("weight_shape", cause, "decompress it with compressed-tensors")
