"""Hy4 is read by its files: residual streams, latent attention with gate and sinks, an index that layers share."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archetype
from archetype import spec
from archetype.errors import ArchetypeError
from archetype.models.cost import model_cost
from tests.helpers.published import EXACT, WRONG, lose, swap
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import SIZES, TOKENS, Tensors, check, written

# The clamp and the index matter in a text of this length; of 16 heads one at least scores each key above 0.
HY4: dict[str, Any] = SIZES | {
    "architectures": ["HYV4ForCausalLM"], "model_type": "hy_v4", "attention_bias": False, "hc_eps": 1e-3,
    "hc_magnitude": 1.5, "hc_mult": 3, "head_dim": 4, "hidden_act": "silu", "index_head_dim": 10, "index_n_heads": 16,
    "index_topk": 12, "indexer_types": ["full", "shared", "full"], "kv_lora_rank": 10, "learnable_sink_init": 0.0,
    "mlp_layer_types": ["dense", "sparse", "sparse"], "moe_intermediate_size": 16, "n_group": 1,
    "n_routed_experts": 6, "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 2,
    "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "rms_norm_eps": 1e-2, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "swiglu_limit": 0.3, "tie_word_embeddings": False, "topk_group": 1, "v_head_dim": 6,
}  # fmt: skip


@torch.no_grad()
def test_hy4(tmp_path: Path) -> None:
    """Whole, step by step and written back; exchanged weights of the two sublayers' streams show."""
    mistake = swap("blocks.1.mixer_residual.weights.weight", "blocks.1.feedforward_residual.weights.weight")
    lm = check(HY4, mistake, tmp_path)
    streams, (dense, sparse, _) = lm.spec.residual, lm.spec.layers
    assert (streams.num_streams, streams.sinkhorn_steps, streams.write_scale, streams.write_eps) == (3, 0, 1.5, 1e-3)
    assert (dense.feedforward.limit, sparse.feedforward.expert.limit, sparse.feedforward.shared.limit) == (
        None, 0.3, None,
    )  # fmt: skip
    assert [block.mixer.index.from_layer for block in lm.spec.layers] == [None, -1, None]
    assert {(block.mixer.index.rotates, block.mixer.index.norm.eps) for block in lm.spec.layers} == {("last", 1e-2)}
    # latents and rotated keys of three layers, index keys of two
    assert model_cost(lm.spec).state(40)[0] == 40 * (3 * (10 + 4) + 2 * 10)
    whole = lm.model(TOKENS).logits
    state = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    for lost in ("blocks.1.mixer.sinks", "blocks.2.mixer.gate.weight", "residual_exit.bias"):
        lose(lost)(lm.model)
        assert distance(lm.model(TOKENS).logits, whole) > WRONG
        lm.model.load_state_dict(state)
    # where the index's keys rotate, and the epsilon of their norm, change which keys are chosen
    for field in ("rotates=first", "norm.eps=1e-6"):
        other = archetype.build(spec.assign(lm.spec, [f"layers[*].mixer.index.{field}"]))
        other.load_state_dict(state)
        assert distance(other(TOKENS).logits, whole) > EXACT


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    folder = tmp_path_factory.mktemp("hy4")
    written(HY4, folder)
    return load_file(folder / "model.safetensors")


MIXED = "model.layers.1.hc_pre.hc_mlp_layer.hc_fn"


@pytest.mark.parametrize(
    ("changes", "shape", "message"),
    [
        ({"hc_mult": 4}, None, "hc_mult: 4 is not supported .the weights of the streams have this number of rows"),
        ({"swiglu_limit": 0.0}, None, "swiglu_limit: 0.0"),
        ({"hc_magnitude": -1.0}, None, "hc_magnitude: -1.0"),
        ({}, {MIXED: (15, 96)}, f"{MIXED}: needs mixing of residual streams"),
        ({}, {"model.hc_pre.hc_head.hc_head_fn": None}, "an unknown sum of the final residual streams"),
    ],
    ids=["another number", "no clamp", "a negative limit", "mixed", "no exit"],
)
def test_what_is_not_hy4_is_refused(
    changes: dict[str, Any], shape: dict[str, tuple[int, ...] | None] | None, message: str, tmp_path: Path,
    tensors: Tensors,
) -> None:  # fmt: skip
    for name, sizes in (shape or {}).items():
        tensors = {key: tensor for key, tensor in tensors.items() if key != name}
        tensors |= {} if sizes is None else {name: torch.zeros(sizes)}
    (tmp_path / "config.json").write_text(json.dumps(HY4 | changes))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ArchetypeError, match=message):
        archetype.load(tmp_path)
