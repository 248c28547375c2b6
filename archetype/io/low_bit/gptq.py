"""GPTQ (`quant_method` gptq): inputs in groups, with a scale and a zero point for each output and group.

`qweight` is packed along the inputs, `qzeros` along the outputs. `g_idx` is the group of each input, in any order if
the matrix was quantized by activation order (desc_act). Zero points are stored minus one, except with
`checkpoint_format` gptq_v2. Weights are rounded once, to the requested dtype, as in GPTQModel's `dequantize_model`.
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
OFFSETS = {"gptq": 1, "gptq_v2": 0}  # format -> offset added to stored zero points


@dataclass(frozen=True)
class Groups(Scheme):
    """Matrix stored as (inputs, outputs), packed in 32-bit words. `offset` is added to the stored zero points."""

    offset: int = 1
    names = (Names(".weight", {"weight": ".qweight", "zeros": ".qzeros", "scales": ".scales"}, {"groups": ".g_idx"}),)

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        weight, zeros, scales = (stored[role] for role in ("weight", "zeros", "scales"))
        if (weight.dtype, zeros.dtype) != ("I32", "I32") or [len(t.shape) for t in (weight, zeros, scales)] != [2] * 3:
            return None
        groups, outputs = scales.shape
        # from the shapes, not the configuration, which AutoRound overrides for single layers
        bits = _bits(zeros.shape[1], outputs)
        inputs = 32 * weight.shape[0] // bits if bits else 0
        order = stored.get("groups", TensorHeader("I32", (inputs,)))
        fits = weight.shape[1] == outputs and zeros.shape[0] == groups and groups and order.shape == (inputs,)
        return (outputs, inputs) if bits and fits and ("groups" in stored or inputs % groups == 0) else None

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        from archetype.io.low_bit.bits import unpack

        scales = stored["scales"]
        bits = _bits(stored["zeros"].shape[1], scales.shape[1])
        quantized = unpack(stored["weight"][:, first:last].t(), bits)  # (last - first, inputs)
        zeros = unpack(stored["zeros"], bits)[:, first:last].t()
        # zero points wrap around: the largest, stored minus one, plus one is 0
        zeros = (zeros + self.offset) & ((1 << bits) - 1)
        scales = scales[:, first:last].t()
        if "groups" not in stored:
            size = quantized.shape[1] // scales.shape[1]
            zeros, scales = (tensor.repeat_interleave(size, dim=1) for tensor in (zeros, scales))
        else:
            groups = stored["groups"].long()
            if int(groups.min()) < 0 or int(groups.max()) >= scales.shape[1]:
                raise CheckpointError("g_idx", f"refers to a group beyond the {scales.shape[1]}", "download it again")
            zeros, scales = zeros[:, groups], scales[:, groups]
        return scales.float() * (quantized - zeros)


def _bits(words: int, outputs: int) -> int:
    # bits per number if a row of zero points takes this many words; 0 if none fits
    return next((bits for bits in BITS if words * 32 == outputs * bits), 0)


def gptq(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    form = settings.get("checkpoint_format") or "gptq"
    if not isinstance(form, str) or form not in OFFSETS:
        raise CheckpointError("checkpoint_format", f"{form!r} is not supported", f"use one of {', '.join(OFFSETS)}")
    return (Groups(OFFSETS[form]),)
