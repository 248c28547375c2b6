"""Presets without a format of their own are what transformers builds under their name.

A model of the published configuration is made on the meta device, and its keys and the names and shapes of its tensors
are read as those of a folder are.
"""

import warnings
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from archetype import families
from archetype.convert.infer import read_unknown
from archetype.errors import UnknownFamily
from archetype.spec.edit import assign, differences
from tests.helpers.examples import every

NEOX = dict(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048, vocab_size=50_304)
FALCON = dict(vocab_size=65_024, bias=False, parallel_attn=True, alibi=False)
GLM = dict(
    num_hidden_layers=46, hidden_size=4096, num_attention_heads=96, num_key_value_heads=8, head_dim=128,
    intermediate_size=10_944, moe_intermediate_size=1408, n_routed_experts=128, n_shared_experts=1,
    num_experts_per_tok=8, first_k_dense_replace=1, routed_scaling_factor=1.0, use_qk_norm=False, attention_bias=True,
    vocab_size=151_552, max_position_embeddings=131_072, n_group=1, topk_group=1, norm_topk_prob=True,
    rms_norm_eps=1e-5, tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
)  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "rope_theta": 500_000.0,
        "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 500_000.0}
LLAMA4 = dict(
    num_hidden_layers=48, hidden_size=5120, num_attention_heads=40, num_key_value_heads=8, head_dim=128,
    intermediate_size=8192, intermediate_size_mlp=16_384, vocab_size=202_048, no_rope_layers=[], rms_norm_eps=1e-5,
)  # fmt: skip
# By preset: type and configuration, as the publisher's page has them.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "pythia-70m": ("gpt_neox", NEOX | dict(rotary_pct=0.25, max_position_embeddings=2048, tie_word_embeddings=False)),
    "gpt-j-6b": ("gptj", dict(n_layer=28, n_embd=4096, n_head=16, rotary_dim=64, vocab_size=50_400, n_positions=2048)),
    "opt-125m": ("opt", dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072)),
    "opt-350m": ("opt", dict(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096, word_embed_proj_dim=512,
        do_layer_norm_before=False)),
    "falcon-7b": ("falcon", FALCON | dict(
        num_hidden_layers=32, hidden_size=4544, num_attention_heads=71, multi_query=True)),
    "falcon-40b": ("falcon", FALCON | dict(
        num_hidden_layers=60, hidden_size=8192, num_attention_heads=128, num_kv_heads=8,
        new_decoder_architecture=True)),
    "glm-4.5-air": ("glm4_moe", GLM),
    "glm-4.5": ("glm4_moe", GLM | dict(
        num_hidden_layers=92, hidden_size=5120, intermediate_size=12_288, moe_intermediate_size=1536,
        n_routed_experts=160, first_k_dense_replace=3, routed_scaling_factor=2.5, use_qk_norm=True)),
    "minimax-m2": ("minimax_m2", dict(
        num_hidden_layers=62, hidden_size=3072, num_attention_heads=48, num_key_value_heads=8, head_dim=128,
        intermediate_size=1536, num_local_experts=256, num_experts_per_tok=8, vocab_size=200_064, rms_norm_eps=1e-6,
        max_position_embeddings=196_608, rotary_dim=64, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5})),
    "qwen3-next-80b-a3b": ("qwen3_next", dict(
        num_hidden_layers=48, hidden_size=2048, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
        intermediate_size=5120, moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts=512,
        num_experts_per_tok=10, vocab_size=151_936, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, max_position_embeddings=262_144, norm_topk_prob=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25})),
    "olmo3-7b": ("olmo3", dict(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=32,
        intermediate_size=11_008, vocab_size=100_278, max_position_embeddings=65_536, rms_norm_eps=1e-6,
        rope_parameters={"full_attention": YARN, "sliding_attention": PLAIN})),
    "llama-4-scout": ("llama4_text", LLAMA4 | dict(
        num_local_experts=16, use_qk_norm=True, max_position_embeddings=10_485_760, rope_theta=500_000.0,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 8192})),
    "llama-4-maverick": ("llama4_text", LLAMA4 | dict(
        num_local_experts=128, interleave_moe_layer_step=2, use_qk_norm=False, max_position_embeddings=1_048_576,
        rope_parameters=PLAIN)),
    "nanochat-d20": ("nanochat", dict(
        num_hidden_layers=20, hidden_size=1280, num_attention_heads=10, num_key_value_heads=10, intermediate_size=5120,
        vocab_size=65_536, max_position_embeddings=2048)),
}  # fmt: skip
# What changes no output of a finished model.
TRAINING = ("name", "initialization", "layers[*].feedforward.balance_loss")


def changes(preset: str) -> list[Any]:
    """Where a preset differs from what transformers builds, but for training."""
    kind, values = CONFIGS[preset]
    config = CONFIG_MAPPING[kind](**values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    keys = config.to_dict() | {"architectures": [type(model).__name__]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFamily)
        read = read_unknown(keys, shapes).format.spec_from(keys)
    all_changes = differences(assign(families.preset(preset), ["name=''"]), read)
    return [(path, *values) for path, *values in all_changes if not path.startswith(TRAINING)]


@pytest.mark.parametrize("preset", every(2, CONFIGS))
def test_a_preset_is_what_transformers_builds(preset: str) -> None:
    assert changes(preset) == []


def test_another_design_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, values = CONFIGS["pythia-70m"]
    monkeypatch.setitem(CONFIGS, "pythia-70m", (kind, values | {"rotary_pct": 0.5, "use_parallel_residual": False}))
    paths = {path for path, *_ in changes("pythia-70m")}
    assert paths >= {"layers[*].mixer.position.dim", "layers[*].wiring.kind"}
