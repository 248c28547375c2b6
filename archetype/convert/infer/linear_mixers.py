"""A layer's state space, delta network or short convolution, by the shapes of its tensors."""

from archetype.convert.infer.checkpoint_info import CheckpointInfo, Shape
from archetype.convert.infer.tensors import Layer
from archetype.families.mamba2 import read_limits
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.mamba.spec import Mamba
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.short_convolution.spec import ShortConvolution
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm

CHUNK = ("chunk_size", "mamba_chunk_size")
GROUPS = ("n_groups", "mamba_n_groups")


def read_linear_mixer(info: CheckpointInfo, layer: Layer, d_model: int) -> Mixer:
    """The mixer of a layer that is no attention."""
    match layer.kind:
        case "mamba":
            return _mamba(info, layer, d_model)
        case "mamba2":
            return _mamba2(info, layer)
        case "gated_delta_net":
            return _gated_delta_net(info, layer)
        case _:
            kernel = _shape(info, layer, "conv.weight")[2]
            return ShortConvolution(conv_kernel=kernel, bias="in_proj.bias" in layer.mixer)


def _shape(info: CheckpointInfo, layer: Layer, param: str) -> Shape:
    """The shape of a tensor that the mixer must have."""
    if param not in layer.mixer:
        raise info.missing(layer.prefix, f"a mixer without {param.removesuffix('.weight')}")
    return info.shapes[layer.mixer[param]]


def _mamba(info: CheckpointInfo, layer: Layer, d_model: int) -> Mamba:
    names, (inner, state_size) = layer.mixer, _shape(info, layer, "A_log")
    rank = _shape(info, layer, "dt_proj.weight")[1]
    norm: Norm = info.norm(bias=False) if "dt_norm.weight" in names else NoNorm()
    if (eps := info.config.optional_positive("mixer_rms_eps")) is not None:
        norm = RMSNorm(eps=eps, weight=False)
    if inner % d_model:
        raise info.missing(layer.prefix, f"a state space of {inner} channels in a model of {d_model}")
    return Mamba(
        expand=inner // d_model,
        state_size=state_size,
        conv_kernel=_shape(info, layer, "conv.weight")[2],
        dt_rank=None if rank == -(-d_model // 16) else rank,
        conv_bias="conv.bias" in names,
        bias="in_proj.bias" in names,
        norm=norm,
    )


def _mamba2(info: CheckpointInfo, layer: Layer) -> Mamba2:
    read_limits(info.config, {})
    names, (num_heads,), (inner,) = layer.mixer, _shape(info, layer, "A_log"), _shape(info, layer, "norm.weight")
    channels, _, kernel = _shape(info, layer, "conv.weight")
    groups = info.size(GROUPS) or 1
    return Mamba2(
        num_heads=num_heads,
        head_dim=inner // num_heads,
        state_size=(channels - inner) // (2 * groups),
        num_groups=groups,
        conv_kernel=kernel,
        chunk_size=info.size(CHUNK) or 256,
        conv_bias="conv.bias" in names,
        bias="in_proj.bias" in names,
        eps=info.norm(bias=False).eps,
    )


def _gated_delta_net(info: CheckpointInfo, layer: Layer) -> GatedDeltaNet:
    (num_heads,), (v_head_dim,) = _shape(info, layer, "A_log"), _shape(info, layer, "norm.weight")
    channels, _, kernel = _shape(info, layer, "conv.weight")
    key_heads = info.size(("linear_num_key_heads",)) or num_heads
    return GatedDeltaNet(
        num_heads=num_heads,
        num_key_heads=None if key_heads == num_heads else key_heads,
        head_dim=(channels - num_heads * v_head_dim) // (2 * key_heads),
        v_head_dim=v_head_dim,
        conv_kernel=kernel,
        negative_eigenvalues=info.config.flag("linear_allow_neg_eigval", False),
        eps=info.quirks.mixer_eps or info.norm(bias=False).eps,
    )
