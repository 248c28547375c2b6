"""Infer a real-gated linear recurrent unit of an unregistered family from names and shapes of its tensors."""

from archetype.parts.rg_lru.spec import RGLRU
from archetype.roles.checkpoint import CheckpointMixer, MixerReader, NameTable
from archetype.spec.registry import provides

PREFIX = r"temporal_block\."
NAMES: NameTable = (
    (rf"{PREFIX}linear_x", "x"),
    (rf"{PREFIX}linear_y", "gate"),
    (rf"{PREFIX}conv_1d", "conv"),
    (rf"{PREFIX}linear_out", "o"),
)
# The gates' weights are (heads, inputs, outputs), as here.
PARAMETERS: NameTable = (
    (rf"{PREFIX}rg_lru\.recurrent_param", "rate"),
    *(
        (rf"{PREFIX}rg_lru\.{name}_{kind}", f"{param}.{kind}")
        for name, param in (("input_gate", "input_gate"), ("recurrent_gate", "decay_gate"))
        for kind in ("weight", "bias")
    ),
)


def read(tensors: CheckpointMixer) -> RGLRU:
    num_heads, inputs, outputs = tensors.shape("input_gate.weight")
    (inner,) = tensors.shape("rate")
    if inputs != outputs or num_heads * inputs != inner:
        raise tensors.missing(f"a recurrence of width {inner} with gates of {num_heads} heads of {inputs}")
    return RGLRU(
        num_heads=num_heads,
        width=None if inner == tensors.d_model else inner,
        conv_kernel=tensors.shape("conv.weight")[2],
        activation=tensors.activation(),
    )


provides("infer", RGLRU)(MixerReader(NAMES, read, sign=(rf"{PREFIX}rg_lru\.recurrent_param", 1), parameters=PARAMETERS))
