"""DeepSeek-V4, read by its files: keys of a window, pooled keys, an index of these, and experts by token id."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from archetype import families
from archetype.errors import CheckpointError
from archetype.estimate.report import total_parameters
from tests.helpers.published import swap
from tests.parity.test_inferred_families import SIZES, Tensors, check, read, written

V4: dict[str, Any] = {key: value for key, value in SIZES.items() if key != "intermediate_size"} | {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "head_dim": 8, "hidden_act": "silu",
    "compress_ratios": [4, 128, 0], "compress_rates": {"compressed_sparse_attention": 4,
                                                       "heavily_compressed_attention": 6},
    "compress_rope_theta": 160.0, "hc_eps": 1e-3, "hc_mult": 2, "hc_sinkhorn_iters": 3, "index_head_dim": 8,
    "index_n_heads": 16, "index_topk": 5, "moe_intermediate_size": 16, "n_routed_experts": 6, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_experts_per_tok": 2, "num_hash_layers": 1, "num_hidden_layers": 3,
    "num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 6, "q_lora_rank": 12, "qk_rope_head_dim": 4,
    "rms_norm_eps": 1e-6, "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 4, "original_max_position_embeddings": 32, "type": "yarn",
    },
    "rope_theta": 100.0, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 8,
    "swiglu_limit": 1.0, "tie_word_embeddings": False,
}  # fmt: skip


def with_table(tensors: Tensors) -> Tensors:
    """The same with random experts for each token id, two different ones."""
    return {
        name: torch.rand(61, 6).argsort(-1)[:, :2].contiguous() if name.endswith("tid2eid") else tensor
        for name, tensor in tensors.items()
    }


def test_deepseek_v4(tmp_path: Path) -> None:
    """Whole, step by step and written back, by the keys of its published files."""
    lm = check(V4, swap("blocks.0.mixer.pool.gate.weight", "blocks.0.mixer.pool.kv.weight"), tmp_path, with_table)
    sparse, heavy, near = (block.mixer for block in lm.spec.layers)
    assert (sparse.pooling.rate, sparse.pooling.overlap, sparse.pooling.index.top_k) == (4, True, 5)
    assert (heavy.pooling.rate, heavy.pooling.overlap, heavy.pooling.index, near.pooling) == (6, False, None, None)
    assert [mixer.position.theta for mixer in (sparse, heavy, near)] == [160.0, 160.0, 100.0]
    assert (sparse.position.scaling.kind, near.position.scaling.kind) == ("yarn", "none")
    assert [block.feedforward.router.kind for block in lm.spec.layers] == ["hash", "sqrt_softplus", "sqrt_softplus"]
    assert lm.spec.residual.sinkhorn_steps == 3


@pytest.mark.parametrize(("preset", "file"), [("flash", "DeepSeek-V4-Flash"), ("pro", "DeepSeek-V4-Pro")])
def test_a_preset_is_what_its_configuration_says(preset: str, file: str, shared: Path) -> None:
    values = json.loads((shared / "published" / "configs" / f"deepseek-ai__{file}.json").read_text())
    del values["quantization_config"]
    with torch.device("meta"):
        theirs = DeepseekV4ForCausalLM(DeepseekV4Config.from_dict(values))
    ours = families.preset(f"deepseek-v4-{preset}")
    assert total_parameters(ours) == theirs.num_parameters()
    kinds = theirs.config.layer_types
    for kind, block in zip(kinds, ours.layers, strict=True):
        pooling = block.mixer.pooling
        assert (pooling is None) == (kind == "sliding_attention")
        assert pooling is None or pooling.rate == theirs.config.compress_rates[kind]
        assert (block.mixer.index is not None) == (kind == "compressed_sparse_attention")
        rotary = theirs.config.rope_parameters["main" if pooling is None else "compress"]
        assert block.mixer.position.theta == rotary["rope_theta"]
    small = ("top_k", values["index_topk"]), ("num_heads", values["index_n_heads"])
    index = next(block.mixer.index for block in ours.layers if block.mixer.index is not None)
    assert all(getattr(index, name) == size for name, size in small)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 128, 0]}, "the tensors of layer 0 in a layer of type 'sliding_attention'"),
        ({"compress_rates": {"compressed_sparse_attention": 2}}, "pooled keys of 4 positions and 16 features"),
        ({"o_groups": 4}, "whose tensor shapes do not fit 4 groups"),
        ({"index_n_heads": 8}, "an index of pooled keys whose tensors do not fit its keys"),
        ({"compress_ratios": None}, "layer_types: is missing"),
    ],
)
def test_what_keys_and_tensors_contradict_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(V4 | changes))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("deepseek_v4")
    written(V4, folder)
    return load_file(folder / "model.safetensors")
