"""A.X K2 is read by its files: norms with gates, queries and gates from two vectors, and a learned index."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
from tests.helpers.published import WRONG, lose, swap
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import SIZES, TOKENS, check, written

AXK2: dict[str, Any] = SIZES | {
    "architectures": ["AXK2ForCausalLM"], "model_type": "axk2", "attention_bias": False, "gated_norm_rank": 3,
    "hidden_act": "silu", "index_head_dim": 10, "index_n_heads": 16, "index_topk": 12, "kv_lora_rank": 10,
    "mlp_layer_types": ["dense", "sparse"], "moe_intermediate_size": 16, "n_group": 2, "n_routed_experts": 6,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 4, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-2,
    "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}, "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False, "topk_group": 1, "v_head_dim": 6,
}  # fmt: skip


@torch.no_grad()
def test_axk2(tmp_path: Path) -> None:
    """Whole, step by step and written back; exchanged gates of two norms show, and so does each new part."""
    lm = check(AXK2, swap("blocks.1.mixer_norm.gate_up.weight", "blocks.1.feedforward_norm.gate_up.weight"), tmp_path)
    dense, sparse = lm.spec.layers
    assert (dense.wiring.mixer_norm.rank, dense.wiring.norm.kind) == (3, "rms")
    assert sparse.wiring.mixer_norm == sparse.wiring.feedforward_norm == dense.wiring.mixer_norm
    assert sparse.mixer.query.joins_unnormed and sparse.mixer.gate_from == "query"
    whole = lm.model(TOKENS).logits
    state = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    queries = lm.model.blocks[1].mixer.q_up.weight
    queries[:, AXK2["q_lora_rank"] :] = 0.0  # what reads the vector before its norm
    assert distance(lm.model(TOKENS).logits, whole) > WRONG
    lm.model.load_state_dict(state)
    for lost in ("blocks.0.mixer_norm.gate_down.weight", "blocks.1.mixer.gate.weight"):
        lose(lost)(lm.model)
        assert distance(lm.model(TOKENS).logits, whole) > WRONG
        lm.model.load_state_dict(state)


NORM = "model.layers.1.input_layernorm"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({f"{NORM}.W_up.weight": (32, 4)}, "model.layers.1: needs an unknown gated norm"),
        ({f"{NORM}.W_down.weight": None}, "model.layers.1: needs an unknown gated norm"),
        (
            {"model.layers.0.self_attn.q_b_proj.weight": (4 * 12, 24)},
            "model.layers.0: needs a query projection of 48 rows that includes the gate of 4 heads",
        ),
    ],
    ids=["another rank", "half a gate", "no gate"],
)
def test_what_is_not_axk2_is_refused(
    changed: dict[str, tuple[int, ...] | None], message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "axk2"
    if not folder.is_dir():
        written(AXK2, folder)
    shapes = {name: tuple(x.shape) for name, x in load_file(folder / "model.safetensors").items()} | changed
    values = json.loads((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=message):
        read_unknown(values, {name: shape for name, shape in shapes.items() if shape is not None})
