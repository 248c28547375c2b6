"""AutoRound (`quant_method` auto-round): whole numbers packed as GPTQ or AWQ packs them; `packing_format` says which.

Layers of other bits or group sizes (`extra_config`) follow from the shapes of their tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from archetype.errors import CheckpointError
from archetype.io.low_bit.awq import awq
from archetype.io.low_bit.gptq import Groups
from archetype.io.low_bit.scheme import Scheme

USUAL = "auto_round:auto_gptq"
# What is added to the zero points of GPTQ's packing, by the name of the format: the first three store them less one.
OFFSETS = {USUAL: 1, "auto_round:gptq": 1, "auto": 1, "auto_round": 0, "auto_round:gptqmodel": 0}
AWQ = ("auto_round:auto_awq", "auto_round:awq")


def auto_round(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    """The scheme of a `packing_format`.

    Raises:
        CheckpointError: numbers are packed in another way, or are no whole numbers.
    """
    form, data_type = settings.get("packing_format", USUAL), settings.get("data_type", "int")
    if data_type != "int":
        raise CheckpointError("data_type", f"{data_type!r} is not read", "read is int")
    if form in AWQ:
        return awq({"bits": settings.get("bits", 4)})
    if not isinstance(form, str) or form not in OFFSETS:
        raise CheckpointError("packing_format", f"{form!r} is not read", f"read are {', '.join((*OFFSETS, *AWQ))}")
    return (Groups(OFFSETS[form]),)
