"""Logits of Inkling: biases that each query computes, experts of every token, and four convolutions in each layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import archetype
from archetype.errors import CheckpointError
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import SIZES, TOKENS, check, read, written

INKLING: dict[str, Any] = SIZES | {
    "architectures": ["InklingForCausalLM"], "model_type": "inkling_text", "head_dim": 8, "swa_head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1,
    "sliding_window_size": 5, "d_rel": 3, "rel_extent": 7, "log_scaling_n_floor": 4, "log_scaling_alpha": 0.3,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_hidden_layers": 3, "moe_intermediate_size": 16, "n_routed_experts": 6, "n_shared_experts": 2,
    "num_experts_per_tok": 2, "route_scale": 1.5, "logits_mup_width_multiplier": 3.0, "rms_norm_eps": 1e-2,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


@torch.no_grad()
def test_inkling(tmp_path: Path) -> None:
    """Whole, in chunks, step by step and written back; each new tensor counts."""
    lm = check(INKLING, lose("blocks.1.mixer.score_bias.bank"), tmp_path)
    windowed, full = (lm.spec.layers[layer].mixer for layer in (0, 1))
    assert (windowed.num_heads, windowed.num_kv_heads, windowed.position.extent) == (2, 1, 5)
    assert (full.num_heads, full.num_kv_heads, full.position.extent, full.scale) == (4, 2, 7, 1 / 8)
    assert windowed.query_scale is None and full.query_scale.form == "log_ratio"
    (experts,) = lm.spec.layers[1].feedforward.parts
    assert (experts.num_experts, experts.always, experts.experts_per_token) == (6, 2, 2)
    whole = lm.model(TOKENS).logits
    for cuts in ([1, 7], [30]):
        assert distance(in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts), whole) < EXACT
    state = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    for lost in (
        "blocks.0.mixer.position_query.weight", "blocks.0.mixer.convolutions.k.weight", "blocks.0.feedforward.scales",
        "blocks.1.feedforward.convolutions.output.weight", "blocks.2.mixer.convolutions.output.weight",
        "embedding.norm.weight",
    ):  # fmt: skip
        lose(lost)(lm.model)
        assert distance(lm.model(TOKENS).logits, whole) > WRONG, lost
        lm.model.load_state_dict(state)


@torch.no_grad()
def test_outputs_that_the_class_cuts_are_written_as_zeros(tmp_path: Path) -> None:
    """Whatever the file has there: the class of transformers never reads these rows, either."""
    written(INKLING | {"unpadded_vocab_size": 50}, folder := tmp_path / "theirs")
    lm = read(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()(TOKENS % 50).logits
    assert lm.model(TOKENS % 50).logits.shape == theirs.shape
    assert distance(lm.model(TOKENS % 50).logits, theirs) < EXACT
    archetype.export(lm, tmp_path / "again")
    same = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(same(TOKENS % 50).logits, theirs)
    rows = same.lm_head.weight[50:]
    assert len(rows) == 11 and not rows.any()


def test_heads_of_another_width_in_windows_are_refused(tmp_path: Path) -> None:
    written(INKLING | {"swa_head_dim": 4}, tmp_path)
    with pytest.raises(CheckpointError, match="swa_head_dim: heads of another width"):
        read(tmp_path)
