"""GPTQ (`quant_method` gptq): columns of a matrix in groups, each row with a scale and a zero point for each group.

`qweight` is packed along the inputs, `qzeros` along the outputs; `g_idx` names the group of each input, which follow
any order where they were quantized by activation (desc_act). Files of the first convention hold zero points less one,
those of `checkpoint_format` gptq_v2 as they are. Rounded once, to the type of the result, as GPTQModel's
`dequantize_model` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archetype.errors import CheckpointError
from archetype.io.low_bit.scheme import Names, Scheme, Shape
from archetype.io.weight_files import TensorHeader

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BITS = (2, 3, 4, 8)
OFFSETS = {"gptq": 1, "gptq_v2": 0}  # what is added to zero points, by the name of the format


@dataclass(frozen=True)
class Groups(Scheme):
    """A matrix that is stored as (inputs, outputs), packed in words of 32 bits.

    Attributes:
        offset: added to the zero points, which wrap around.
    """

    offset: int = 1
    names = (Names(".weight", {"weight": ".qweight", "zeros": ".qzeros", "scales": ".scales"}, {"groups": ".g_idx"}),)

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        """(outputs, inputs)"""
        weight, zeros, scales = (stored[role] for role in ("weight", "zeros", "scales"))
        if (weight.dtype, zeros.dtype) != ("I32", "I32") or [len(t.shape) for t in (weight, zeros, scales)] != [2] * 3:
            return None
        groups, outputs = scales.shape
        bits = _bits(zeros.shape[1], outputs)
        inputs = 32 * weight.shape[0] // bits if bits else 0
        order = stored.get("groups", TensorHeader("I32", (inputs,)))
        fits = weight.shape[1] == outputs and zeros.shape[0] == groups and groups and order.shape == (inputs,)
        return (outputs, inputs) if bits and fits and ("groups" in stored or inputs % groups == 0) else None

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Scale of the group times number less zero point."""
        from archetype.io.low_bit.bits import unpack

        scales = stored["scales"]
        bits = _bits(stored["zeros"].shape[1], scales.shape[1])
        numbers = unpack(stored["weight"][:, first:last].t(), bits)
        zeros = unpack(stored["zeros"], bits)[:, first:last].t()
        zeros = (zeros + self.offset) & ((1 << bits) - 1)
        scales = scales[:, first:last].t()
        if "groups" not in stored:
            size = numbers.shape[1] // scales.shape[1]
            zeros, scales = (tensor.repeat_interleave(size, dim=1) for tensor in (zeros, scales))
        else:
            groups = stored["groups"].long()
            if int(groups.min()) < 0 or int(groups.max()) >= scales.shape[1]:
                raise CheckpointError("g_idx", f"names a group beyond the {scales.shape[1]}", "download it again")
            zeros, scales = zeros[:, groups], scales[:, groups]
        return scales.float() * (numbers - zeros)


def _bits(words: int, outputs: int) -> int:
    """How many bits a number has, where a row of zero points takes so many words; 0 where none fits."""
    return next((bits for bits in BITS if words * 32 == outputs * bits), 0)


def gptq(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    """The scheme of a `checkpoint_format`.

    Raises:
        CheckpointError: numbers are packed in another way.
    """
    form = settings.get("checkpoint_format") or "gptq"
    if not isinstance(form, str) or form not in OFFSETS:
        raise CheckpointError("checkpoint_format", f"{form!r} is not read", f"read are {', '.join(OFFSETS)}")
    return (Groups(OFFSETS[form]),)
