"""Infer RWKV-4 of an unregistered family from names and shapes of its tensors."""

from archetype.parts.rwkv4.spec import RWKV4
from archetype.roles.checkpoint import CheckpointMixer, MixerReader, NameTable
from archetype.spec.registry import provides

PREFIX = r"attention\."
NAMES: NameTable = tuple(
    (rf"{PREFIX}{theirs}", ours)
    for theirs, ours in (("receptance", "r"), ("key", "k"), ("value", "v"), ("output", "o"))
)
PARAMETERS: NameTable = (
    *((rf"{PREFIX}time_mix_{name}", f"mix_{name[0]}") for name in ("receptance", "key", "value")),
    (rf"{PREFIX}time_decay", "decay"),
    (rf"{PREFIX}time_first", "bonus"),
)


def read(tensors: CheckpointMixer) -> RWKV4:
    (inner,) = tensors.shape("bonus")
    return RWKV4(width=None if inner == tensors.d_model else inner)


# RWKV-5 has a bonus of each head, in another number of dimensions
provides("infer", RWKV4)(MixerReader(NAMES, read, sign=(rf"{PREFIX}time_first", 1), parameters=PARAMETERS))
