"""Rotary positions in published configurations: every historic spelling is read, one is written.

Spellings: `rope_theta` and `rope_scaling` at the top (transformers 4), `rope_parameters` (transformers 5);
`type` or `rope_type`; the trained length inside, at the top, or taken from max_position_embeddings.
"""

from typing import Any, assert_never

from archetype.families.config import Config
from archetype.parts.position.spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    Rotary,
    RotaryScaling,
    YarnScaling,
)
from archetype.spec.base import MAX_LENGTH


def read_rotary(config: Config, head_dim: int, context_length: int, default_theta: float = 10_000.0) -> Rotary:
    """The rotary positions of a configuration."""
    theta = config.positive("rope_theta", default_theta)
    fraction = config.positive("partial_rotary_factor", 1.0)
    trained = config.size("original_max_position_embeddings", context_length, MAX_LENGTH)
    old, new = config.section("rope_scaling"), config.section("rope_parameters")
    section = new if new is not None and new.values else old
    scaling: RotaryScaling = NoScaling()
    if section is not None and section.values:
        theta = section.positive("rope_theta", theta)
        fraction = section.positive("partial_rotary_factor", fraction)
        scaling = _read_scaling(section, trained, context_length)
        section.finish(frozenset())
    dim = None if fraction == 1.0 else int(head_dim * fraction)
    return Rotary(theta=theta, dim=dim, scaling=scaling)


def write_rotary(rotary: Rotary, head_dim: int) -> dict[str, Any]:
    """`rope_parameters` as transformers 5 writes them."""
    parameters: dict[str, Any] = {"rope_theta": rotary.theta} | _written_scaling(rotary.scaling)
    if rotary.dim is not None and rotary.dim != head_dim:
        parameters["partial_rotary_factor"] = rotary.dim / head_dim
    return parameters


def _read_scaling(section: Config, trained: int, context_length: int) -> RotaryScaling:
    new, old = section.get("rope_type"), section.get("type")
    match kind := old if new is None else new:
        case None | "default":
            section.get("factor")
            return NoScaling()
        case "linear":
            return LinearScaling(factor=section.positive("factor"))
        case "dynamic":
            # transformers takes the trained length from max_position_embeddings, whatever else the file says
            section.get("original_max_position_embeddings")
            return DynamicScaling(factor=section.positive("factor"), original_context_length=context_length)
        case "yarn":
            return _read_yarn(section, trained, context_length)
        case "llama3":
            return Llama3Scaling(
                factor=section.positive("factor"),
                low_frequency_factor=section.positive("low_freq_factor"),
                high_frequency_factor=section.positive("high_freq_factor"),
                original_context_length=section.size("original_max_position_embeddings", trained, MAX_LENGTH),
            )
        case _:
            raise section.error("rope_type", f"there is no scaling {kind!r}", "known are linear, dynamic, yarn, llama3")


def _read_yarn(section: Config, trained: int, context_length: int) -> YarnScaling:
    original = section.size("original_max_position_embeddings", trained, MAX_LENGTH)
    optional = {
        name: section.positive(name)
        for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
        if section.get(name) not in (None, 0)
    }
    return YarnScaling(
        factor=section.positive("factor", context_length / original),
        original_context_length=original,
        truncate=section.flag("truncate", True),
        **optional,
    )


def _written_scaling(scaling: RotaryScaling) -> dict[str, Any]:
    match scaling:
        case NoScaling():
            return {"rope_type": "default"}
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case DynamicScaling():
            return {"rope_type": "dynamic", "factor": scaling.factor}
        case YarnScaling():
            values = {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_context_length,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "mscale": scaling.mscale,
                "mscale_all_dim": scaling.mscale_all_dim,
                "attention_factor": scaling.attention_factor,
                "truncate": None if scaling.truncate else False,
            }
            return {name: value for name, value in values.items() if value is not None}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
                "original_max_position_embeddings": scaling.original_context_length,
            }
        case _:
            assert_never(scaling)
