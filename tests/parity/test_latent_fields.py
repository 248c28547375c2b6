"""Latent attention with factors of its latents, a norm of the shared key, and windows, against transformers' dots 3."""

from pathlib import Path
from typing import Any

import pytest
import torch

import archetype
from archetype import spec
from archetype.models.cost import model_cost
from archetype.nn.cache import RingKVCache
from tests.helpers.published import EXACT, WRONG, lose
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import SIZES, TOKENS, check

# Published files say nothing of `per_layer_config`, and call layers with an index by the name of those without.
DOTS3: dict[str, Any] = SIZES | {
    "architectures": ["Dots3NoteForCausalLM"], "model_type": "dots3_note_text", "attention_bias": False, "head_dim": 4,
    "hidden_act": "silu", "index_head_dim": 8, "index_n_heads": 16, "index_topk": 5, "kv_lora_rank": 10,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "moe_intermediate_size": 16,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "num_hidden_layers": 3,
    "num_key_value_heads": 4, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-2,
    "rope_theta": 1e3, "shared_experts_intermediate_size": 16, "sliding_window_size": 6, "swa_head_dim": 10,
    "swa_kv_lora_rank": 6, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_q_lora_rank": 7,
    "swa_qk_nope_head_dim": 4, "swa_rope_theta": 50.0, "swa_v_head_dim": 5, "tie_word_embeddings": False,
    "use_dsa": True, "v_head_dim": 6,
}  # fmt: skip


@torch.no_grad()
def test_dots3(tmp_path: Path) -> None:
    """Whole, step by step and written back, with other latents, heads and rotations in layers with windows."""
    lm = check(DOTS3, lose("blocks.1.mixer.k_norm.weight"), tmp_path)
    whole, windowed = lm.model(TOKENS).logits, lm.spec.layers[1].mixer
    indexed = lm.spec.layers[0].mixer
    assert indexed.latent_scale == pytest.approx((32 / 10) ** 0.5) and indexed.query.scale != 1.0
    assert (windowed.num_heads, windowed.pattern.size, windowed.position.theta, windowed.index) == (2, 6, 50.0, None)
    # a latent and a rotated key of each position, or of the window alone; and the keys of the index
    assert model_cost(lm.spec).state(40)[0] == 40 * (10 + 4 + 8) + 2 * 6 * (6 + 6)
    states = lm.model.new_state(1, 40).layers
    assert sum(state.nbytes for state in states) == 4 * model_cost(lm.spec).state(40)[0]
    assert isinstance(states[1], RingKVCache)
    state = lm.model.state_dict()
    for changed in ("pattern.size=7", "pattern=full", "position.theta=1e3"):
        other = archetype.build(spec.assign(lm.spec, [f"layers[1:3].mixer.{changed}"]))
        other.load_state_dict(state)
        assert distance(other(TOKENS).logits, whole) > WRONG
    longer = archetype.build(spec.assign(lm.spec, ["layers[1:3].mixer.pattern=full"]))
    longer.load_state_dict(state)
    assert distance(longer(TOKENS[:, :6]).logits, lm.model(TOKENS[:, :6]).logits) < EXACT
