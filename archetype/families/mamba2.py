"""Mamba-2 (Dao 2024). Format: transformers' `mamba2`."""

from functools import partial
from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, ignored
from archetype.families.mamba import RULES, STATE_SPACE, mamba
from archetype.families.rules import weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.parts.mamba2.infer import step_limits
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.norm.spec import RMSNorm


def mamba2(*, eps: float = 1e-5, **design: Any) -> Decoder:
    """Build a decoder of Mamba-2 layers without feed-forward parts. `design` is as in `mamba`, for `spec.Mamba2`."""
    return mamba(eps=eps, kind=partial(Mamba2, eps=eps), **{"vocab_size": 50_288} | design)


def write_limits(model: Any) -> dict[str, Any]:
    mixer = model.layers[0].mixer
    # how transformers writes infinity, which JSON does not have
    largest = {"__float__": "Infinity"} if mixer.dt_limit_max is None else mixer.dt_limit_max
    return {"time_step_limit": [mixer.dt_limit_min, largest]} if mixer.limits_steps else {}


KEYS = ConfigTable(mamba2, (
    # keys of the authors' program, of computation and of initialization, which do not affect outputs
    ignored("residual_in_fp32", "rescale_prenorm_residual", "time_step_floor", "time_step_rank", "norm_before_gate",
        "rms_norm", "time_step_init_scheme", "layer_types"),
    Converted(lambda config, values: {**step_limits(config)}, write_limits),
    Key("hidden_size", "d_model", 4096),
    Key("num_heads", "num_heads", 128),
    Key("head_dim", "head_dim", 64, path="block.mixer.head_dim"),
    Expected("expand", lambda values: values["num_heads"] * values["head_dim"] / values["d_model"],
        "heads whose width contradicts expand", path=lambda model: model.layers[0].mixer.inner // model.d_model),
    Expected("hidden_act", "silu", "another activation", path=lambda model: "silu"),
    Key("num_hidden_layers", "num_layers", 64),
    Key("state_size", "state_size", 128),
    Key("n_groups", "num_groups", 8),
    *STATE_SPACE,
    Key("chunk_size", "chunk_size", 256),
    Key("vocab_size", "vocab_size", 32_768),
    Key("tie_word_embeddings", "tied", False),
), parts={"block.mixer": Mamba2, "final_norm": RMSNorm})

FAMILY = Family("mamba2", {
    **presets("Dao 2024, appendix D; state-spaces/mamba2-* config.json", mamba2, {
        "mamba2-130m": dict(num_layers=24, d_model=768, num_heads=24),
        "mamba2-370m": dict(num_layers=48, d_model=1024, num_heads=32),
        "mamba2-780m": dict(num_layers=48, d_model=1536, num_heads=48),
        "mamba2-1.3b": dict(num_layers=48, d_model=2048, num_heads=64),
        "mamba2-2.7b": dict(num_layers=64, d_model=2560, num_heads=80),
    }),
    **presets("mistralai/Mamba-Codestral-7B-v0.1 config.json",
        partial(mamba2, vocab_size=32_768, tied=False, num_groups=8), {
        "mamba-codestral-7b": dict(num_layers=64, d_model=4096, num_heads=128),
    }),
    **tiny(mamba2, {"mamba2-tiny": dict(num_layers=2, num_heads=4, head_dim=32, state_size=32, chunk_size=32)}),
}, Format("mamba2", "Mamba2ForCausalLM", KEYS, (*RULES, *weight_rules("""
    backbone.layers.{i}.mixer.dt_bias       = blocks.{i}.mixer.dt_bias
    backbone.layers.{i}.mixer.norm            blocks.{i}.mixer.norm
""")), "backbone.", class_heads={}))
