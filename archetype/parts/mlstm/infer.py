"""Infer an mLSTM of an unregistered family from names and shapes of its tensors."""

from archetype.parts.mlstm.spec import MLSTM
from archetype.roles.checkpoint import CheckpointMixer, MixerReader, NameTable
from archetype.spec.registry import provides

PREFIX = r"mlstm_layer\."
NAMES: NameTable = (
    *((rf"{PREFIX}{name}", name) for name in "qkv"),
    (rf"{PREFIX}ogate_preact", "gate"),
    (rf"{PREFIX}igate_preact", "input_gate"),
    (rf"{PREFIX}fgate_preact", "forget_gate"),
    (rf"{PREFIX}multihead_norm", "norm"),
    (rf"{PREFIX}out_proj", "o"),
)


def read(tensors: CheckpointMixer) -> MLSTM:
    """Read widths from the norm, the number of heads from the gates, and the bounds of both from config.json."""
    config, heads, (values,) = tensors.config, tensors.sides("input_gate.weight")[0], tensors.shape("norm.weight")
    keys = tensors.sides("q.weight")[0]
    if values % heads or keys % heads:
        raise tensors.missing(f"an mLSTM whose tensor shapes do not fit {heads} heads")
    return MLSTM(
        num_heads=heads,
        head_dim=keys // heads,
        v_head_dim=None if values == tensors.d_model else values // heads,
        gate_softcap=config.optional_positive("gate_soft_cap"),
        bias="o.bias" in tensors.shapes,
        norm_eps=tensors.eps,
        eps=config.positive("eps", 1e-6),
        chunk_size=config.size("chunk_size", 64),
    )


provides("infer", MLSTM)(MixerReader(NAMES, read, sign=(rf"{PREFIX}multihead_norm\.weight", 1)))
