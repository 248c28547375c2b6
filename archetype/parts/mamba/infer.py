"""Infer Mamba of an unregistered family from names and shapes of its tensors."""

from archetype.parts.mamba.spec import Mamba
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.roles.checkpoint import CheckpointMixer, MixerReader, NameTable
from archetype.roles.norm import Norm
from archetype.spec.registry import provides

ACTIVATION = ("mamba_hidden_act", "hidden_mamba_act", "hidden_act")  # after the convolution
# Names that state spaces and delta networks share.
PREFIX = r"(?:\w+\.)*?(?:mamba|mixer|linear_attn)\."
PARAMETERS: NameTable = tuple((rf"{PREFIX}{name}", name) for name in ("A_log", "D", "dt_bias"))
IN_AND_OUT: NameTable = (
    (rf"{PREFIX}in_proj", "in_proj"),
    (rf"{PREFIX}conv1d", "conv"),
    (rf"{PREFIX}out_proj", "out_proj"),
)

NAMES: NameTable = (
    *IN_AND_OUT,
    (rf"{PREFIX}x_proj", "x_proj"),
    (rf"{PREFIX}dt_proj", "dt_proj"),
    *((rf"{PREFIX}{name}_layernorm", f"{name}_norm") for name in ("dt", "b", "c")),
)


def read(tensors: CheckpointMixer) -> Mamba:
    check_activation(tensors)
    inner, state_size = tensors.shape("A_log")  # (I, Z)
    rank, d_model = tensors.shape("dt_proj.weight")[1], tensors.d_model
    norm: Norm = tensors.norm(bias=False) if "dt_norm.weight" in tensors.shapes else NoNorm()
    if (eps := tensors.config.optional_positive("mixer_rms_eps")) is not None:
        norm = RMSNorm(eps=eps, weight=False)
    if inner % d_model:
        raise tensors.missing(f"a state space with {inner} channels in a model of width {d_model}")
    tensors.settle("in_proj_order", ("x_gate",), "no file states which half of in_proj is the gate")
    return Mamba(
        expand=inner // d_model,
        state_size=state_size,
        conv_kernel=tensors.shape("conv.weight")[2],
        dt_rank=None if rank == -(-d_model // 16) else rank,
        conv_bias="conv.bias" in tensors.shapes,
        bias="in_proj.bias" in tensors.shapes,
        norm=norm,
    )


def check_activation(tensors: CheckpointMixer) -> None:
    """Refuse activations after the convolution other than SiLU, the only supported activation."""
    key = next((key for key in ACTIVATION if tensors.config.get(key) is not None), None)
    if key is not None and (name := tensors.config.get(key)) not in ("silu", "swish"):
        raise tensors.config.error(key, f"{name!r} after a convolution is not supported", "only silu is")


SIGN = r"(?:mamba|mixer)\.A_log"  # shape (channels, state)
provides("infer", Mamba)(MixerReader(NAMES, read, sign=(SIGN, 2), parameters=PARAMETERS))
