"""Doge: a number of each key that its values give is added to all of its scores."""

from pathlib import Path
from typing import Any

import pytest
import torch

from archetype import spec
from archetype.errors import CheckpointError, SpecError
from archetype.estimate.report import cost_report
from archetype.models.build import build
from archetype.spec.edit import assign
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import SIZES, TOKENS, check, read, written

DOGE: dict[str, Any] = SIZES | {
    "architectures": ["DogeForCausalLM"], "model_type": "doge", "num_hidden_layers": 2, "hidden_act": "silu",
    "rms_norm_eps": 1e-2, "keep_window_size": 128, "tie_word_embeddings": False, "attention_bias": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"attention_bias": False, "sliding_window": 9}])
def test_doge(changes: dict[str, Any], tmp_path: Path) -> None:
    """Whole, step by step and written back; the numbers are computed again from the cached values."""
    lm = check(DOGE | changes, lose("blocks.1.mixer.key_bias.rate"), tmp_path)
    whole = lm.model(TOKENS).logits
    assert distance(in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), [1, 7, 12]), whole) < EXACT
    state = lm.model.new_state(1, 12)
    assert cost_report(lm.spec, 1, 12, dtype="float32").state["bytes"] == state.nbytes
    plain = assign(lm.spec, ["layers[*].mixer.key_bias=false"])
    assert cost_report(plain, 1, 12, dtype="float32").state == cost_report(lm.spec, 1, 12, dtype="float32").state
    without = build(plain).eval()
    without.load_state_dict({name: x for name, x in lm.model.state_dict().items() if "key_bias" not in name})
    assert distance(without(TOKENS).logits, whole) > WRONG
    for layer in lm.model.blocks:  # equal numbers of all keys change no weight
        layer.mixer.key_bias.rate.zero_()
    assert distance(lm.model(TOKENS).logits, without(TOKENS).logits) < EXACT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_moe": True, "num_experts": 16, "num_experts_per_tok": 2}, "is_moe: True is not supported"),
        ({"keep_window_size": 64}, "keep_window_size: each query would attend to 64 of up to 128 keys"),
    ],
)
def test_experts_and_keys_left_out_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(DOGE | change, tmp_path)
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keys_from", -1),
        ("position", {"kind": "alibi"}),
        ("index", {"kind": "lightning", "top_k": 2, "num_heads": 2, "head_dim": 4}),
    ],
)
def test_biases_of_values_are_all_that_is_added(field: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{field}: cannot be combined with key_bias"):
        spec.Attention.parse({"num_heads": 4, "key_bias": True, field: value})
