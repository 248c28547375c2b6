"""Rotary positions in GGUF: metadata keys, and Llama 3's scaling as a tensor of frequency divisors."""

import math
from typing import Any

from archetype.convert.gguf.keys import FileKeys, Keys, unsupported
from archetype.convert.gguf.limits import DIVIDED
from archetype.errors import CheckpointError
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.position.spec import (
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    ProportionalScaling,
    Rotary,
    RotaryScaling,
    YarnScaling,
)

FACTORS = "rope_freqs.weight"
UNROTATED = 1.0000000150474662e30  # divisor of the pairs that do not rotate: 1e30 in float32
# Parameters of Llama 3's scaling that the file does not store: the divisors only determine their ratios.
LOW, HIGH = 1.0, 4.0
LENGTHS = (8192, *(2**power for power in range(4, 21)))


def read_scaling(
    config: FileKeys, theta: float, dim: int, truncate: bool = True, every_yarn: bool = False
) -> RotaryScaling:
    """Return the scaling of rotary frequencies.

    Args:
        dim: rotated features of a head.
        truncate: whether the ramp of YaRN is rounded to whole pairs.
        every_yarn: whether llama.cpp reads the ramp's ends and the factor on cos and sin here.
    """
    kind = config.get("rope.scaling.type", "linear")  # llama.cpp's default, with factor 1
    factor = config.number("rope.scaling.factor", config.number("rope.scale_linear", 1.0))
    config.expect("rope.scaling.attn_factor", 1.0, "scaled rotations")
    config.used |= {"rope.scaling.original_context_length", "rope.scaling.finetuned"}  # which these kinds do not read
    if kind == "yarn":
        length = config.size("rope.scaling.original_context_length")
        plain = YarnScaling(
            factor=config.positive("rope.scaling.factor"), original_context_length=length, truncate=truncate
        )
        if not every_yarn:
            config.expect("rope.scaling.yarn_beta_fast", plain.beta_fast, "another YaRN ramp")
            config.expect("rope.scaling.yarn_beta_slow", plain.beta_slow, "another YaRN ramp")
            return plain
        every = config.number("rope.scaling.yarn_log_multiplier", 0.0)
        return plain.replace(
            beta_fast=config.positive("rope.scaling.yarn_beta_fast", plain.beta_fast),
            beta_slow=config.positive("rope.scaling.yarn_beta_slow", plain.beta_slow),
            mscale=1.0 if every else None,
            mscale_all_dim=every or None,
        )
    if kind not in ("none", "linear"):
        raise config.error("rope.scaling.type", f"{kind!r} is not supported", "use 'none', 'linear' or 'yarn'")
    if FACTORS in config.shapes:
        config.used_tensors.add(FACTORS)
        divided = _of_factors(config, config.vector(FACTORS), theta, dim)
        if divided != NoScaling() and (factor not in (0.0, 1.0) or config.architecture not in DIVIDED):
            cause = f"divides frequencies that llama.cpp scales otherwise in {config.architecture}"
            raise CheckpointError(f"{config.place}: {FACTORS}", cause, "this model is not supported")
        if divided != NoScaling():
            return divided
    if kind == "none" or factor in (0.0, 1.0):
        return NoScaling()
    return LinearScaling(factor=config.positive("rope.scaling.factor", factor))


def written_scaling(scaling: RotaryScaling, truncate: bool = True, every_yarn: bool = False) -> Keys:
    """Return the keys for a scaling. Llama 3's scaling is stored as a tensor instead (see `frequency_factors`)."""
    match scaling:
        case NoScaling() | Llama3Scaling():
            return {}
        case LinearScaling():
            return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
        case YarnScaling() if scaling == _plain_yarn(scaling, truncate, every_yarn):
            keys: Keys = {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": scaling.factor,
                "rope.scaling.original_context_length": scaling.original_context_length,
            }
            if not every_yarn:
                return keys
            return keys | {
                "rope.scaling.yarn_beta_fast": scaling.beta_fast,
                "rope.scaling.yarn_beta_slow": scaling.beta_slow,
                "rope.scaling.yarn_log_multiplier": scaling.mscale_all_dim or 0.0,
            }
        case _:
            raise unsupported("layers[0].mixer.position.scaling", f"{scaling.kind} scaling as transformers computes it")


def _plain_yarn(scaling: YarnScaling, truncate: bool, every_yarn: bool) -> YarnScaling:
    # llama.cpp only reads these, and uses transformers' defaults for the rest
    length = scaling.original_context_length
    plain = YarnScaling(factor=scaling.factor, original_context_length=length, truncate=truncate)
    if not every_yarn:
        return plain
    return plain.replace(
        beta_fast=scaling.beta_fast,
        beta_slow=scaling.beta_slow,
        mscale=None if scaling.mscale_all_dim is None else 1.0,
        mscale_all_dim=scaling.mscale_all_dim,
    )


def frequency_factors(model: Any) -> list[float] | None:
    """Return the divisors of the pairs' frequencies in Llama 3's and Gemma 4's scalings; None for other scalings."""
    mixers = [block.mixer for block in model.layers] if isinstance(model, Decoder) else []
    for mixer in mixers:
        if isinstance(mixer, Attention) and isinstance(mixer.position, Rotary):
            scaling, dim = mixer.position.scaling, mixer.sizes(model.d_model).rotary_dim
            if isinstance(scaling, Llama3Scaling):
                return _factors(scaling, mixer.position.theta, dim)
            if isinstance(scaling, ProportionalScaling):
                turning = int(scaling.share * dim // 2)
                return [scaling.factor] * turning + [UNROTATED] * (dim // 2 - turning)
    return None


def _factors(scaling: Llama3Scaling, theta: float, dim: int) -> list[float]:
    # the divisor goes from `factor` at the low frequency to 1 at the high frequency
    factors = []
    for pair in range(dim // 2):
        turns = scaling.original_context_length / (2 * math.pi * theta ** (2 * pair / dim))
        share = min(max((turns - scaling.low_frequency_factor) / scaling.band, 0.0), 1.0)
        factors.append(1 / ((1 - share) / scaling.factor + share))
    return factors


def _of_factors(config: FileKeys, factors: list[float], theta: float, dim: int) -> RotaryScaling:
    # try each usual context length until the divisors match in float32
    if len(factors) == dim // 2 and all(factor == 1.0 for factor in factors):
        return NoScaling()
    for length in LENGTHS if len(factors) == dim // 2 and max(factors) > 0 else ():
        scaling = Llama3Scaling(
            factor=max(factors),
            low_frequency_factor=LOW,
            high_frequency_factor=HIGH,
            original_context_length=length,
        )
        pairs = zip(factors, _factors(scaling, theta, dim), strict=True)
        if all(math.isclose(stored, computed, rel_tol=2e-7) for stored, computed in pairs):
            return scaling
    cause = "contains frequency divisors that are not Llama 3's scaling"
    raise CheckpointError(f"{config.place}: {FACTORS}", cause, "this model is not supported")
