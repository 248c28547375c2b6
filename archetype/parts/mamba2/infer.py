"""Mamba-2 of a family that is not registered, by the names and shapes of its tensors."""

from archetype.parts.mamba.infer import IN_AND_OUT, PARAMETERS, PREFIX, SIGN, check_activation
from archetype.parts.mamba2.spec import Mamba2
from archetype.roles.checkpoint import CheckpointMixer, ConfigKeys, MixerReader, NameTable
from archetype.spec.registry import provides

NAMES: NameTable = (*IN_AND_OUT, (rf"{PREFIX}norm", "norm"))
CHUNK = ("chunk_size", "mamba_chunk_size")
GROUPS = ("n_groups", "mamba_n_groups")
ENDLESS = (float("inf"), "Infinity", {"__float__": "Infinity"})  # as different versions of transformers spell it


def read(tensors: CheckpointMixer) -> Mamba2:
    """The sizes follow from the rates, the norm and the convolution; groups and chunks are keys."""
    refuse_step_limits(tensors.config)
    check_activation(tensors)
    (num_heads,), (inner,) = tensors.shape("A_log"), tensors.shape("norm.weight")
    channels, _, kernel = tensors.shape("conv.weight")
    groups = tensors.size(GROUPS) or 1
    return Mamba2(
        num_heads=num_heads,
        head_dim=inner // num_heads,
        state_size=(channels - inner) // (2 * groups),
        num_groups=groups,
        conv_kernel=kernel,
        chunk_size=tensors.size(CHUNK) or 256,
        conv_bias="conv.bias" in tensors.shapes,
        bias="in_proj.bias" in tensors.shapes,
        eps=tensors.quirks.mixer_eps or tensors.eps,
    )


def refuse_step_limits(config: ConfigKeys) -> None:
    """Refuse steps that are clamped, which transformers does in a whole text and not token by token."""
    limits = config.get("time_step_limit")
    if limits is not None and limits not in [[0.0, endless] for endless in ENDLESS]:
        raise config.error("time_step_limit", "clamps the steps, which is missing here", "remove it if nothing is")


provides("infer", Mamba2)(MixerReader(NAMES, read, sign=(SIGN, 1), parameters=PARAMETERS))
