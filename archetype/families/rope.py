"""Rotary positions in published configurations. Every historic spelling is read, but only the newest is written.

Spellings: `rope_theta` and `rope_scaling` at the top level (transformers 4), `rope_parameters` (transformers 5);
`type` or `rope_type`; the original context length in the section, at the top level, or max_position_embeddings.
"""

import math
from typing import Any

from archetype.families.config import Config
from archetype.parts.position.spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    ProportionalScaling,
    Rotary,
    RotaryScaling,
    YarnScaling,
)
from archetype.spec.base import MAX_LENGTH

SECTIONS = ("rope_scaling", "rope_parameters")
FRACTION = "partial_rotary_factor"  # fraction of a head's features that rotate

# Keys of the fields of a scaling that have another name in a file.
KEYS = {
    "original_context_length": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "short_factors": "short_factor",
    "long_factors": "long_factor",
    "share": FRACTION,
}


def read_rotary(
    config: Config,
    head_dim: int,
    context_length: int,
    default_theta: float = 10_000.0,
    default_trained: int | None = None,
    rereads: bool = False,
) -> Rotary:
    """Read the rotary positions of a configuration.

    Args:
        head_dim: width of a head.
        context_length: context length in tokens.
        default_theta: theta of a file without the key.
        default_trained: original context length of a file without the key at the top level (default: as in the section,
            or `context_length`).
        rereads: whether the class recomputes a sequence that outgrows the original context.
    """
    theta = config.positive("rope_theta", default_theta)
    fraction = config.positive("partial_rotary_factor", 1.0)
    trained = config.optional_size("original_max_position_embeddings", default_trained)
    section = rotary_section(config)
    scaling: RotaryScaling = NoScaling()
    if section is not None:
        theta = section.positive("rope_theta", theta)
        fraction = section.positive("partial_rotary_factor", fraction)
        scaling = _read_scaling(section, trained, context_length)
        section.finish(frozenset())
        if isinstance(scaling, LongRopeScaling):
            scaling = scaling.replace(rereads=rereads)
    # a proportional scaling has the fraction as its share
    is_whole = fraction == 1.0 or isinstance(scaling, ProportionalScaling)
    dim = None if is_whole else int(head_dim * fraction)
    return Rotary(theta=theta, dim=dim, scaling=scaling)


def rotary_section(config: Config) -> Config | None:
    """Return the section on rotary positions under either name; None if absent. Refuse two different sections."""
    both = (config.section(key) for key in SECTIONS)
    sections = [section for section in both if section is not None and section.values]
    if len(sections) == len(SECTIONS) and sections[0].values != sections[1].values:
        raise config.error(SECTIONS[0], f"contradicts {SECTIONS[1]}", "remove one of them")
    return sections[0] if sections else None


def write_rotary(rotary: Rotary, head_dim: int) -> dict[str, Any]:
    parameters: dict[str, Any] = {"rope_theta": rotary.theta} | _written_scaling(rotary.scaling)
    if rotary.dim is not None and rotary.dim != head_dim:
        parameters["partial_rotary_factor"] = rotary.dim / head_dim
    return parameters


def _read_scaling(section: Config, trained: int | None, context_length: int) -> RotaryScaling:
    # as in transformers, `trained` has precedence over a length in the section
    new, old = section.get("rope_type"), section.get("type")
    trained_in_section = section.size("original_max_position_embeddings", context_length, MAX_LENGTH)
    trained = trained or trained_in_section
    match kind := old if new is None else new:
        case None | "default":
            section.get("factor")
            return NoScaling()
        case "linear":
            return LinearScaling(factor=section.positive("factor"))
        case "dynamic":
            # transformers always uses max_position_embeddings as the original context length here
            return DynamicScaling(factor=section.positive("factor"), original_context_length=context_length)
        case "yarn":
            return _read_yarn(section, trained, context_length)
        case "llama3":
            return Llama3Scaling(
                factor=section.positive("factor"),
                low_frequency_factor=section.positive("low_freq_factor"),
                high_frequency_factor=section.positive("high_freq_factor"),
                original_context_length=trained,
            )
        case "longrope" | "su":
            return _read_longrope(section, trained, context_length)
        case "proportional":
            share = section.positive("partial_rotary_factor", 1.0)
            return ProportionalScaling(share=share, factor=section.positive("factor", 1.0))
        case _:
            known = "use one of linear, dynamic, yarn, llama3, longrope, proportional"
            raise section.error("rope_type", f"unknown scaling {kind!r}", known)


def _read_longrope(section: Config, trained: int, context_length: int) -> LongRopeScaling:
    lists = {name: section.get(name) for name in ("short_factor", "long_factor")}
    for name, factors in lists.items():
        if not isinstance(factors, list):
            raise section.error(name, f"{factors!r} is not a list of numbers", "fix the file")
    factor = section.positive("factor", context_length / trained)
    # LongRoPE's attention factor (Ding 2024), which transformers computes if the file has none
    usual = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 and trained > 1 else 1.0
    return LongRopeScaling(
        short_factors=lists["short_factor"],
        long_factors=lists["long_factor"],
        original_context_length=trained,
        attention_factor=section.positive("attention_factor", usual),
    )


def _read_yarn(section: Config, trained: int, context_length: int) -> YarnScaling:
    optional = {
        name: section.positive(name)
        for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
        # transformers takes null and 0 for missing
        if section.get(name) not in (None, 0)
    }
    return YarnScaling(
        factor=section.positive("factor", context_length / trained),
        original_context_length=trained,
        truncate=section.flag("truncate", True),
        **optional,
    )


def _written_scaling(scaling: RotaryScaling) -> dict[str, Any]:
    if isinstance(scaling, NoScaling):
        return {"rope_type": "default"}
    # transformers always uses max_position_embeddings as the original context length of a dynamic scaling
    left_out = {"kind", "rereads"} | ({"original_context_length"} if isinstance(scaling, DynamicScaling) else set())
    values = {name: value for name, value in scaling if name not in left_out and value is not None}
    if values.get("truncate"):  # newer than the other keys, and by default true
        del values["truncate"]
    written = {KEYS.get(name, name): list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return {"rope_type": scaling.kind, **written}
