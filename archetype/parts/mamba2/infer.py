"""Infer Mamba-2 of an unregistered family from names and shapes of its tensors."""

from typing import Literal

from archetype.parts.mamba.infer import IN_AND_OUT, PARAMETERS, PREFIX, SIGN, check_activation
from archetype.parts.mamba2.spec import Mamba2
from archetype.roles.checkpoint import CheckpointMixer, ConfigKeys, MixerReader, NameTable
from archetype.spec.registry import provides

NAMES: NameTable = (*IN_AND_OUT, (rf"{PREFIX}norm", "norm"))
CHUNK = ("chunk_size", "mamba_chunk_size")
GROUPS = ("n_groups", "mamba_n_groups")
HAS_NORM, NORM_FIRST, SCALES = "mamba_rms_norm", "mamba_norm_before_gate", "ssm_multipliers"  # of Falcon-H1
ENDLESS = (float("inf"), "Infinity", {"__float__": "Infinity"})  # spellings in different versions of transformers


def read(tensors: CheckpointMixer) -> Mamba2:
    check_activation(tensors)
    (num_heads,), inner = tensors.shape("A_log"), tensors.sides("out_proj.weight")[1]
    channels, _, kernel = tensors.shape("conv.weight")  # (inner + 2 groups Z, 1, kernel)
    groups = tensors.size(GROUPS) or 1
    tensors.settle("in_proj_order", ("gate_x_b_c_dt",), "no file states the order of the parts of in_proj")
    return Mamba2(
        num_heads=num_heads,
        head_dim=inner // num_heads,
        state_size=(channels - inner) // (2 * groups),
        num_groups=groups,
        conv_kernel=kernel,
        chunk_size=tensors.size(CHUNK) or 256,
        conv_bias="conv.bias" in tensors.shapes,
        bias="in_proj.bias" in tensors.shapes,
        norm=_norm(tensors, inner),
        eps=tensors.quirks.mixer_eps or tensors.eps,
        in_scales=_scales(tensors.config),
        **step_limits(tensors.config, tensors.quirks.steps_from_min),
    )


def _norm(tensors: CheckpointMixer, inner: int) -> Literal["after_gate", "before_gate", "none"]:
    if tensors.shapes.get("norm.weight", (inner,)) != (inner,):
        raise tensors.missing("a gated norm whose width differs from the state space's")
    if "norm.weight" not in tensors.shapes:
        if tensors.config.get(HAS_NORM) is False:
            return "none"
        raise tensors.missing("a state space without a norm")
    if tensors.config.get(HAS_NORM) is False:
        raise tensors.missing(f"a gated norm although {HAS_NORM} is false")
    return "before_gate" if tensors.config.flag(NORM_FIRST, False) else "after_gate"


def _scales(config: ConfigKeys) -> tuple[float, float, float, float, float] | None:
    match config.get(SCALES):
        case None | [1, 1, 1, 1, 1]:
            return None
        case [float() | int(), float() | int(), float() | int(), float() | int(), float() | int()] as scales:
            gate, channels, b, c, steps = map(float, scales)
            return gate, channels, b, c, steps
    raise config.error(SCALES, "is not a list of five factors (gate, channels, B, C, step size)", "fix the file")


def step_limits(config: ConfigKeys, from_min: bool = False) -> dict[str, float]:
    """Return the limits of step sizes: from `time_step_min` if `from_min`, else from `time_step_limit`."""
    limits = config.get("time_step_limit")
    if from_min:
        return {"dt_limit_min": config.positive("time_step_min", 1e-3)}
    match limits:
        case None:
            return {}
        case [float() | int() as least, float() | int() | str() | dict() as most] if least >= 0:
            lower = {"dt_limit_min": float(least)} if least else {}
            if most in ENDLESS:
                return lower
            if isinstance(most, float | int) and most > 0:
                return lower | {"dt_limit_max": float(most)}
    raise config.error("time_step_limit", "is not a pair [smallest step, largest step]", "write it as [0.0, Infinity]")


provides("infer", Mamba2)(MixerReader(NAMES, read, sign=(SIGN, 1), parameters=PARAMETERS))
