"""AutoRound (`quant_method` auto-round): integers packed as in GPTQ or AWQ, depending on `packing_format`.

Bits and group sizes of individual layers (`extra_config`) follow from the shapes of their tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from archetype.errors import CheckpointError
from archetype.io.low_bit.awq import awq
from archetype.io.low_bit.gptq import Groups
from archetype.io.low_bit.scheme import Scheme

USUAL = "auto_round:auto_gptq"
# Packing format -> offset added to GPTQ's stored zero points; the first three formats store them minus one.
OFFSETS = {USUAL: 1, "auto_round:gptq": 1, "auto": 1, "auto_round": 0, "auto_round:gptqmodel": 0}
AWQ = ("auto_round:auto_awq", "auto_round:awq")


def auto_round(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    # AutoRound's default packing
    form, data_type = settings.get("packing_format", USUAL), settings.get("data_type", "int")
    if data_type != "int":
        raise CheckpointError("data_type", f"{data_type!r} is not supported", "use int")
    if form in AWQ:
        return awq({"bits": settings.get("bits", 4)})
    if not isinstance(form, str) or form not in OFFSETS:
        raise CheckpointError(
            "packing_format", f"{form!r} is not supported", f"use one of {', '.join((*OFFSETS, *AWQ))}"
        )
    return (Groups(OFFSETS[form]),)
