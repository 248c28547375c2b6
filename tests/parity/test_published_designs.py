"""Designs of which transformers' default configuration shows one alone: the other ones, read by their tensors."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import archetype
from archetype.estimate.report import total_parameters
from archetype.models.decoder.module import Decoder
from archetype.nn.state import State
from tests.helpers.examples import every
from tests.helpers.published import EXACT, WRONG, Change, same_tensors, swap
from tests.helpers.weights import distance, randomize
from tests.helpers.zoo import TEXT

COMMON = dict(hidden_size=32, num_attention_heads=4, vocab_size=61, max_position_embeddings=64, pad_token_id=0)
LLAMA4 = COMMON | dict(
    num_hidden_layers=4, num_key_value_heads=2, head_dim=8, intermediate_size=16, intermediate_size_mlp=48,
    num_local_experts=4, attention_chunk_size=5,
)  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip


def scale_experts(model: nn.Module) -> None:
    """Weigh what experts give, and not what they read."""
    for block in model.blocks:  # type: ignore[union-attr]
        if hasattr(block.feedforward, "router"):
            block.feedforward.spec = block.feedforward.spec.replace(weighs="outputs")


# By name: type, configuration, and a mistake that must show.
DESIGNS: dict[str, tuple[str, dict[str, Any], Change | Callable[[nn.Module], None]]] = {
    "opt, narrow": (
        "opt", COMMON | dict(num_hidden_layers=2, ffn_dim=48, word_embed_proj_dim=16, do_layer_norm_before=False),
        swap("blocks.0.mixer.k.weight", "blocks.0.mixer.v.weight"),
    ),
    "llama 4, all experts": (
        "llama4_text", LLAMA4 | dict(floor_scale=4, attn_scale=0.7, rope_parameters=LLAMA3, num_experts_per_tok=2),
        scale_experts,
    ),
    "llama 4, some experts": (
        "llama4_text", LLAMA4 | dict(interleave_moe_layer_step=2, use_qk_norm=False, attn_temperature_tuning=False),
        scale_experts,
    ),
    "llama 4, other layers": (
        "llama4_text", LLAMA4 | dict(no_rope_layers=[0, 1, 1, 0], floor_scale=3), scale_experts,
    ),
    "nemotron, latent experts": (
        "nemotron_h", COMMON | dict(
            layers_block_type=["mamba", "moe", "attention", "mlp"], n_groups=2, num_key_value_heads=2, head_dim=8,
            intermediate_size=48, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, moe_latent_size=16,
            n_routed_experts=4, num_experts_per_tok=2, routed_scaling_factor=5.0, mamba_num_heads=4, mamba_head_dim=16,
            ssm_state_size=4),
        swap("blocks.1.feedforward.experts.up", "blocks.1.feedforward.experts.down"),
    ),
}  # fmt: skip


def stepped(model: Decoder) -> Tensor:
    """The logits of a text that is read token by token."""
    state: State | None = model.new_state(1, TEXT.shape[1])
    logits = []
    for token in TEXT.T:
        output = model(token[None], state=state)
        logits.append(output.logits)
        state = output.state
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("name", every(2, DESIGNS))
@torch.no_grad()
def test_a_design_is_read_computes_the_same_and_is_written_back(name: str, tmp_path: Path) -> None:
    kind, values, mistake = DESIGNS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = randomize(AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**values)))
        drawn.save_pretrained(tmp_path / "theirs")
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
        lm = archetype.load(tmp_path / "theirs")
        archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path / "theirs", tmp_path / "written")
    assert total_parameters(lm.spec) == sum(tensor.numel() for tensor in theirs.parameters())
    model, expected = lm.model, theirs(TEXT, use_cache=False).logits
    assert isinstance(model, Decoder)
    assert distance(model(TEXT).logits, expected) < EXACT
    assert distance(stepped(model), expected) < EXACT
    mistake(model)
    assert distance(model(TEXT).logits, expected) > WRONG
