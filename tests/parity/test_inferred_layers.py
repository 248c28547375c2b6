"""Layers whose tensors are named, numbered or stacked as in no other type, read by their files, every tensor random."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
from tests.helpers.published import WRONG, swap
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import TOKENS, check, read

ATTENTION = {"clip_qkv": 1.0, "kv_n_heads": 2, "model_type": "", "rope_theta": 500.0}
NETWORK: dict[str, Any] = {
    "ffn_hidden_size": 24,
    "model_type": "",
    "moe_loss_weight": 0.05,
    "moe_num_experts": 4,
    "moe_top_k": 2,
}
NETWORK |= {"ffn_act_fn": {"name": "gelu"}}
DBRX: dict[str, Any] = {
    "architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "attn_config": ATTENTION, "ffn_config": NETWORK,
    "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "vocab_size": 61, "rope_theta": 500.0,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = "transformer.blocks.0.ffn.experts.mlp"


def test_dbrx_stacks_the_rows_of_its_experts(tmp_path: Path) -> None:
    """Of the other order of rows, each feature of all experts, the logits are others; no file says which it is."""
    mistake = swap("blocks.0.feedforward.experts.gate", "blocks.0.feedforward.experts.up")
    lm = check(DBRX, mistake, tmp_path)
    assert {layer.mixer.clip_qkv for layer in lm.spec.layers} == {1.0}
    assert lm.spec.layers[0].feedforward.router.renormalize
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    for name in ("w1", "v1", "w2"):
        tensor = tensors[f"{EXPERTS}.{name}"]
        tensors[f"{EXPERTS}.{name}"] = tensor.unflatten(0, (4, 24)).transpose(0, 1).flatten(0, 1).contiguous()
    save_file(tensors, tmp_path / "theirs" / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        assert distance(read(tmp_path / "theirs").model(TOKENS).logits, lm.model(TOKENS).logits) > WRONG


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        (
            "attn_config",
            {"rope_theta": 5e5},
            r"attn_config: rope_theta: 500000.0 is not 500.0, which transformers uses",
        ),
        ("ffn_config", {"moe_normalize_expert_weights": 2.0}, "the norm of power 2.0 is not supported"),
        ("ffn_config", None, "ffn_config: is missing, and the dbrx class derives it"),
    ],
)
def test_what_dbrx_cannot_say_is_refused(section: str, change: Any, message: str) -> None:
    shapes = {"transformer.wte.weight": (61, 32)}
    with pytest.raises(CheckpointError, match=message):
        read_unknown(DBRX | {section: None if change is None else DBRX[section] | change}, shapes)


def test_rows_that_the_experts_do_not_divide_are_refused() -> None:
    shapes = {
        "transformer.wte.weight": (61, 32), "transformer.blocks.0.ffn.router.layer.weight": (4, 32),
        "transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight": (64, 32),
        "transformer.blocks.0.norm_attn_norm.attn.out_proj.weight": (32, 32),
        "transformer.blocks.0.norm_attn_norm.norm_1.weight": (32,),
        "transformer.blocks.0.norm_attn_norm.norm_2.weight": (32,),
        **{f"{EXPERTS}.{name}": (95, 32) for name in ("w1", "v1", "w2")},
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=r"mlp\.w2: has 95 rows, which 4 experts do not divide"):
        read_unknown(DBRX, shapes)
