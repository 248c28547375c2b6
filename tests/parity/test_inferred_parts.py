"""Types with a part of their own that are read by their files alone, against transformers, every tensor random."""

import json
from pathlib import Path
from typing import Any

import pytest

import archetype
from archetype import spec
from archetype.convert.infer import read_unknown
from archetype.errors import ArchetypeError, CheckpointError
from tests.helpers.published import WRONG, swap
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import SIZES, TOKENS, check

# The keys as published; the window is shorter than the text, and sqrt(32) is 5.6569, in bfloat16 5.65625.
RECURRENT_GEMMA: dict[str, Any] = {key: value for key, value in SIZES.items() if key != "max_position_embeddings"} | {
    "architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma", "attention_bias": False,
    "attention_window_size": 12, "block_types": ["recurrent", "attention"], "conv1d_width": 3,
    "embeddings_scale_by_sqrt_dim": True, "head_dim": 8, "hidden_activation": "silu",
    "logits_soft_cap": 5.0, "lru_width": 48, "num_hidden_layers": 3, "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True, "torch_dtype": "float32",
    "w_init_variance_scale": 0.01,
}  # fmt: skip


def test_recurrent_gemma(tmp_path: Path) -> None:
    """Recurrences and windows; the gates of a recurrence in the wrong order show."""
    mistake = swap("blocks.0.mixer.input_gate.weight", "blocks.0.mixer.decay_gate.weight")
    lm = check(RECURRENT_GEMMA, mistake, tmp_path, their_cache=False)  # their class returns no cache
    first, second, third = (block.mixer for block in lm.spec.layers)
    assert first == third == spec.RGLRU(num_heads=4, width=48, conv_kernel=3, activation=spec.SiLU())
    assert second.pattern == spec.Window(size=12)
    assert second.position.dim == 2
    assert lm.spec.embedding.scale == 5.65625
    assert lm.spec.head.softcap == 5.0


def test_gates_of_another_size_than_the_recurrence_are_refused() -> None:
    below = "model.layers.0.temporal_block."
    shapes: dict[str, Any] = {
        "model.embed_tokens.weight": (61, 32), "model.final_norm.weight": (32,),
        "model.layers.0.temporal_pre_norm.weight": (32,), "model.layers.0.channel_pre_norm.weight": (32,),
        f"{below}rg_lru.recurrent_param": (32,), f"{below}rg_lru.input_gate_weight": (4, 8, 6),
        "model.layers.0.mlp_block.down_proj.weight": (32, 48),
    }  # fmt: skip
    with pytest.raises(CheckpointError, match="a recurrence of 32 features with gates of 4 heads of 8"):
        read_unknown(RECURRENT_GEMMA, shapes)


BITNET: dict[str, Any] = SIZES | {
    "architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_act": "relu2", "initializer_range": 0.02,
    "num_hidden_layers": 2, "rms_norm_eps": 1e-3, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "torch_dtype": "float32", "use_cache": True,
}  # fmt: skip


def test_bitnet(tmp_path: Path) -> None:
    """Norms before both output projections, in the place of each other's layer in the control."""
    norms = swap("blocks.0.mixer.heads_norm.weight", "blocks.1.mixer.heads_norm.weight")
    lm = check(BITNET, norms, tmp_path)
    for block in lm.spec.layers:
        assert block.mixer.heads_norm == block.feedforward.hidden_norm == spec.RMSNorm(eps=1e-3)
        assert block.feedforward.activation == spec.ReLU2()
    whole = lm.model(TOKENS).logits
    swap("blocks.0.feedforward.hidden_norm.weight", "blocks.1.feedforward.hidden_norm.weight")(lm.model)
    assert distance(lm.model(TOKENS).logits, whole) > WRONG
    # weights of the published kind are rounded in every pass
    values = BITNET | {"quantization_config": {"quant_method": "bitnet", "quantization_mode": "online"}}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(values))
    with pytest.raises(ArchetypeError, match="quantization_config"):
        archetype.load(tmp_path / "theirs")
