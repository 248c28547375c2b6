"""Every key of a GGUF file against the published configuration's own numbers, read back by the `gguf` package.

What is expected is said by the names of two other parties: those of config.json, and `gguf.Keys`.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from archetype.convert.gguf import file as ours
from archetype.convert.gguf.architectures import GGUF
from archetype.convert.gguf.rope import frequency_factors
from archetype.convert.gguf.tensors import file_shapes
from archetype.errors import CheckpointError
from archetype.families import family_of
from archetype.models.build import build
from archetype.models.spec import ModelSpec
from tests.helpers.cases import case
from tests.helpers.published_configs import PUBLISHED
from tests.unit.convert.test_gguf import APART, value, written

LLM, ATTENTION, ROPE, SSM = gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope, gguf.Keys.SSM
Config = dict[str, Any]
# What the publisher says, in whichever spelling.
SAID: dict[str, tuple[str, ...]] = {
    LLM.EMBEDDING_LENGTH: ("hidden_size", "n_embd", "n_embed", "d_model"),
    LLM.BLOCK_COUNT: ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    LLM.VOCAB_SIZE: ("vocab_size",),
    LLM.CONTEXT_LENGTH: ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    LLM.FEED_FORWARD_LENGTH: ("intermediate_size", "d_ff"),
    LLM.EXPERT_COUNT: ("num_local_experts", "n_routed_experts", "num_experts"),
    LLM.EXPERT_USED_COUNT: ("num_experts_per_tok",),
    LLM.EXPERT_SHARED_COUNT: ("n_shared_experts",),
    LLM.EXPERT_WEIGHTS_SCALE: ("routed_scaling_factor",),
    LLM.EXPERT_FEED_FORWARD_LENGTH: ("moe_intermediate_size", "intermediate_size"),
    LLM.LEADING_DENSE_BLOCK_COUNT: ("first_k_dense_replace",),
    LLM.ATTN_LOGIT_SOFTCAPPING: ("attn_logit_softcapping",),
    LLM.FINAL_LOGIT_SOFTCAPPING: ("final_logit_softcapping",),
    LLM.DECODER_BLOCK_COUNT: ("num_decoder_layers", "num_layers"),
    ATTENTION.HEAD_COUNT: ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ATTENTION.HEAD_COUNT_KV: ("num_key_value_heads", "num_attention_heads", "n_head", "n_heads"),
    ATTENTION.KEY_LENGTH: ("head_dim", "d_kv"),
    ATTENTION.VALUE_LENGTH: ("head_dim", "d_kv"),
    ATTENTION.LAYERNORM_EPS: ("layer_norm_epsilon", "layer_norm_eps"),
    ATTENTION.LAYERNORM_RMS_EPS: ("rms_norm_eps", "layer_norm_epsilon"),
    ATTENTION.REL_BUCKETS_COUNT: ("relative_attention_num_buckets",),
    ATTENTION.Q_LORA_RANK: ("q_lora_rank",),
    ATTENTION.KV_LORA_RANK: ("kv_lora_rank",),
    ATTENTION.SLIDING_WINDOW: ("sliding_window",),
    ROPE.FREQ_BASE: ("rope_theta",),
    ROPE.FREQ_BASE_SWA: ("rope_local_base_freq", "rope_theta"),
    ROPE.DIMENSION_COUNT: ("head_dim",),
    SSM.CONV_KERNEL: ("conv_kernel",),
    SSM.STATE_SIZE: ("state_size",),
    SSM.TIME_STEP_RANK: ("time_step_rank",),
    SSM.INNER_SIZE: ("intermediate_size",),
    gguf.Keys.Tokenizer.TOKEN_TYPE_COUNT: ("type_vocab_size",),
}
SIZES = (LLM.EMBEDDING_LENGTH, LLM.BLOCK_COUNT, LLM.VOCAB_SIZE, LLM.CONTEXT_LENGTH)
HEADS = (ATTENTION.HEAD_COUNT, ATTENTION.HEAD_COUNT_KV, ATTENTION.KEY_LENGTH, ATTENTION.VALUE_LENGTH)
TURNED = (ROPE.FREQ_BASE, ROPE.DIMENSION_COUNT)
GATED = (*SIZES, *HEADS, *TURNED, ATTENTION.LAYERNORM_RMS_EPS, LLM.FEED_FORWARD_LENGTH)
EXPERTS = (LLM.EXPERT_COUNT, LLM.EXPERT_USED_COUNT)
STANDARD = (*SIZES, *HEADS, ATTENTION.LAYERNORM_EPS, LLM.FEED_FORWARD_LENGTH)
# What a file of each type has to say, as llama.cpp's loader asks for it (src/llama-model.cpp, load_hparams).
ASKED: dict[str, tuple[str, ...]] = {
    "llama": GATED,
    "mistral": GATED,
    "mixtral": (*GATED, *EXPERTS, LLM.EXPERT_FEED_FORWARD_LENGTH),
    "qwen2": GATED,
    "qwen3": GATED,
    "qwen3_moe": (*GATED, *EXPERTS, LLM.EXPERT_FEED_FORWARD_LENGTH),
    "gemma": GATED,
    "gemma2": (
        *GATED, LLM.ATTN_LOGIT_SOFTCAPPING, LLM.FINAL_LOGIT_SOFTCAPPING, ATTENTION.SLIDING_WINDOW, ROPE.FREQ_BASE_SWA,
    ),
    "gemma3_text": (*GATED, ATTENTION.SLIDING_WINDOW, LLM.FINAL_LOGIT_SOFTCAPPING, ROPE.FREQ_BASE_SWA),
    "deepseek_v2": (
        *GATED, *EXPERTS, LLM.EXPERT_FEED_FORWARD_LENGTH, LLM.EXPERT_SHARED_COUNT, LLM.EXPERT_WEIGHTS_SCALE,
        LLM.LEADING_DENSE_BLOCK_COUNT, ATTENTION.Q_LORA_RANK, ATTENTION.KV_LORA_RANK, ATTENTION.KEY_LENGTH_MLA,
        ATTENTION.VALUE_LENGTH_MLA, LLM.EXPERT_WEIGHTS_NORM, LLM.EXPERT_GATING_FUNC,
    ),
    "gpt2": STANDARD,
    "bloom": STANDARD,
    "mpt": (*STANDARD, ATTENTION.MAX_ALIBI_BIAS),
    "mamba": (
        *SIZES, ATTENTION.LAYERNORM_RMS_EPS, SSM.CONV_KERNEL, SSM.STATE_SIZE, SSM.TIME_STEP_RANK, SSM.INNER_SIZE,
        LLM.FEED_FORWARD_LENGTH, ATTENTION.HEAD_COUNT,
    ),
    "bert": (
        *SIZES, *HEADS, ATTENTION.LAYERNORM_EPS, LLM.FEED_FORWARD_LENGTH, ATTENTION.CAUSAL,
        LLM.POOLING_TYPE, gguf.Keys.Tokenizer.TOKEN_TYPE_COUNT,
    ),
    "t5": (
        *SIZES, LLM.DECODER_BLOCK_COUNT, LLM.FEED_FORWARD_LENGTH, ATTENTION.HEAD_COUNT, ATTENTION.KEY_LENGTH,
        ATTENTION.VALUE_LENGTH, ATTENTION.LAYERNORM_RMS_EPS, ATTENTION.LAYERNORM_EPS, ATTENTION.REL_BUCKETS_COUNT,
    ),
}  # fmt: skip


def expected(config: Config) -> dict[str, Any]:
    """The values of all keys, by the publisher's numbers alone."""
    type = config["model_type"]
    values = {key: said(config, key) for key in ASKED[type]}
    computed = of_latents(config) if type == "deepseek_v2" else OTHERWISE.get(type, {})
    values |= {key: one for key, one in computed.items() if key in values or type == "deepseek_v2"}
    values |= scaling(config)
    if type == "qwen3_moe":  # of layers without experts, which there are none of and llama.cpp does not read
        values[LLM.FEED_FORWARD_LENGTH] = config["moe_intermediate_size"]
    if type == "mistral":  # llama.cpp has no windows there
        values[LLM.CONTEXT_LENGTH] = min(config["max_position_embeddings"], config["sliding_window"])
    return {key: one for key, one in values.items() if one is not None}


def said(config: Config, key: str) -> Any:
    """A number of the configuration; where publishers leave it out, what their code computes instead."""
    if (name := next((name for name in SAID.get(key, ()) if config.get(name) is not None), None)) is not None:
        return config[name]
    if key in (ATTENTION.KEY_LENGTH, ATTENTION.VALUE_LENGTH, ROPE.DIMENSION_COUNT):
        return said(config, LLM.EMBEDDING_LENGTH) // said(config, ATTENTION.HEAD_COUNT)
    if key == LLM.FEED_FORWARD_LENGTH:
        return 4 * said(config, LLM.EMBEDDING_LENGTH)
    # the layer norms' is torch's own, in MPT
    return {ROPE.FREQ_BASE: 10_000.0, ATTENTION.LAYERNORM_EPS: 1e-5, ATTENTION.Q_LORA_RANK: 0}.get(key)


OTHERWISE: dict[str, dict[str, Any]] = {
    "mpt": {ATTENTION.MAX_ALIBI_BIAS: 8.0},
    "mamba": {
        LLM.CONTEXT_LENGTH: 2048, LLM.FEED_FORWARD_LENGTH: 0, ATTENTION.HEAD_COUNT: 0,
    },
    "bert": {ATTENTION.CAUSAL: False, LLM.POOLING_TYPE: int(gguf.PoolingType.MEAN)},
    "t5": {LLM.CONTEXT_LENGTH: 512},
}  # fmt: skip


def of_latents(config: Config) -> dict[str, Any]:
    """Latent attention counts as one head of keys as wide as the latents and what is turned (llama.cpp's MLA)."""
    turned, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    return {
        ATTENTION.HEAD_COUNT_KV: 1,
        ATTENTION.KEY_LENGTH: rank + turned,
        ATTENTION.VALUE_LENGTH: rank,
        ATTENTION.KEY_LENGTH_MLA: config["qk_nope_head_dim"] + turned,
        ATTENTION.VALUE_LENGTH_MLA: config["v_head_dim"],
        ROPE.DIMENSION_COUNT: turned,
        LLM.EXPERT_WEIGHTS_NORM: config["norm_topk_prob"],
        LLM.EXPERT_GATING_FUNC: int(gguf.ExpertGatingFuncType.SOFTMAX),
    }


def scaling(config: Config) -> dict[str, Any]:
    said = config.get("rope_scaling") or {}
    kind = said.get("rope_type", said.get("type"))
    if kind == "linear":
        return {ROPE.SCALING_TYPE: "linear", ROPE.SCALING_FACTOR: said["factor"]}
    if kind == "yarn":
        return {
            ROPE.SCALING_TYPE: "yarn",
            ROPE.SCALING_FACTOR: said["factor"],
            ROPE.SCALING_ORIG_CTX_LEN: said["original_max_position_embeddings"],
            ROPE.SCALING_YARN_BETA_FAST: said["beta_fast"],
            ROPE.SCALING_YARN_BETA_SLOW: said["beta_slow"],
            ROPE.SCALING_YARN_LOG_MUL: 0.1 * said["mscale_all_dim"],  # as llama.cpp's own converter writes it
        }
    return {}  # Llama 3's bands are a tensor


def model_of(config: Config) -> ModelSpec:
    family = family_of(config)
    assert family is not None
    return family.format.spec_from(config)


def header(config: Config, folder: Path) -> dict[str, Any]:
    """The keys of a file of this configuration, without the architecture's name, as the library reads them."""
    model, target = model_of(config), GGUF[config["model_type"]]
    if config["model_type"] == "bert":
        model = model.replace(head={"kind": "none"})
    keys = target.metadata(model, lambda: file_shapes(model, target), lambda name: frequency_factors(model) or [])
    writer = gguf.GGUFWriter(folder / "header.gguf", target.architecture)
    for name, one in keys.items():
        ours._put(writer, name if name.startswith("tokenizer.") else f"{target.architecture}.{name}", one)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    fields = gguf.GGUFReader(folder / "header.gguf").fields
    return {
        key.replace(f"{target.architecture}.", "{arch}.", 1): field.contents()
        for key, field in fields.items()
        if not key.startswith(("GGUF.", "general."))
    }


def same(one: Any, other: Any) -> bool:
    """Equal, and of one type; numbers as 32 bits keep them."""
    if isinstance(other, float) or isinstance(one, float):
        return bool(np.float32(one) == np.float32(other)) and not isinstance(one, bool)
    return type(one) is type(other) and one == other


CONFIGS = {name: config for name, config in PUBLISHED.items() if config["model_type"] in ASKED}
# Numbers that no publisher has chosen, so that none of them is anybody's default.
ODD: dict[str, Any] = {
    "rope_theta": 54_321.0, "rms_norm_eps": 3e-4, "layer_norm_epsilon": 3e-4, "layer_norm_eps": 3e-4,
    "attn_logit_softcapping": 47.0, "final_logit_softcapping": 23.0, "num_experts_per_tok": 3,
    "relative_attention_num_buckets": 24, "type_vocab_size": 5, "routed_scaling_factor": 2.5, "conv_kernel": 3,
    "state_size": 24, "time_step_rank": 40, "n_shared_experts": 3, "first_k_dense_replace": 2, "sliding_window": 1234,
    "num_decoder_layers": 3, "num_key_value_heads": 2,
}  # fmt: skip
SCALINGS: dict[str, Config] = {
    "llama": {"rope_type": "linear", "factor": 3.0},
    "deepseek_v2": {
        "type": "yarn", "factor": 7, "original_max_position_embeddings": 2048, "beta_fast": 24, "beta_slow": 2,
        "mscale": 0.5, "mscale_all_dim": 0.5,
    },
}  # fmt: skip


def changed(config: Config) -> Config:
    """The configuration with other numbers wherever it has one, or may have one."""
    if config["model_type"] in ("qwen2", "qwen3", "qwen3_moe"):  # these windows are switched off
        config = {name: one for name, one in config.items() if name != "sliding_window"}
    numbers = {name: ODD[name] for name in ODD if config.get(name) is not None}
    if config["model_type"] in ("deepseek_v2", "bloom", "mpt", "gpt2"):
        numbers.pop("num_key_value_heads", None)
    if config["model_type"] == "deepseek_v2":
        del numbers["rms_norm_eps"]  # the norms inside its attention have 1e-6, and llama.cpp knows one for all
    if config["model_type"] == "gemma3_text":
        numbers["final_logit_softcapping"] = ODD["final_logit_softcapping"]  # which some say, and the published one not
    if config["model_type"] in SCALINGS:
        numbers["rope_scaling"] = SCALINGS[config["model_type"]]
    return config | numbers


def test_every_family_that_is_written_is_in_the_tables() -> None:
    # the keys of the other rows are compared with the specification (test_gguf_graphs.py)
    assert ASKED.keys() == GGUF.keys() - APART
    assert ASKED.keys() == {config["model_type"] for config in CONFIGS.values()}


@pytest.mark.parametrize("numbers_of", ["published", "changed"])
def test_every_key_is_the_publishers_number(numbers_of: str, tmp_path: Path) -> None:
    for name, config in CONFIGS.items():
        config = config if numbers_of == "published" else changed(config)
        if name == "gemma2-2b":
            config = config | {"tie_word_embeddings": True}
        with case(name, numbers_of):
            keys, numbers = header(config, tmp_path), expected(config)
            assert keys.keys() == numbers.keys()
            wrong = {key: (keys[key], one) for key, one in numbers.items() if not same(keys[key], one)}
            assert not wrong


def test_the_numbers_are_those_that_were_changed(tmp_path: Path) -> None:
    """The control: of each changed number the file says another than of the published one."""
    before = header(CONFIGS["mixtral-8x7b"], tmp_path)
    after = header(changed(CONFIGS["mixtral-8x7b"]), tmp_path)
    differ = {key for key in before if before[key] != after[key]}
    assert differ == {ROPE.FREQ_BASE, ATTENTION.LAYERNORM_RMS_EPS, LLM.EXPERT_USED_COUNT, ATTENTION.HEAD_COUNT_KV}


def test_a_whole_file_has_the_same_keys(tmp_path: Path) -> None:
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 40, "max_position_embeddings": 48}  # fmt: skip
    config = changed(CONFIGS["llama-2-7b"]) | small
    file = written(build(model_of(config)), tmp_path / "out", family="llama")
    for key, one in expected(config).items():
        assert same(value(file, key.format(arch="llama")), one), key


def test_a_published_model_of_27b_is_scaled_by_another_width() -> None:
    """By 46 layers llama.cpp knows Gemma 2 of 27B, whose scores it scales by d_model / num_heads."""
    config = PUBLISHED["gemma2-2b"] | {
        "num_hidden_layers": 46, "hidden_size": 4608, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 128, "intermediate_size": 36864,
    }  # fmt: skip
    target = GGUF["gemma2"]
    for scalar, is_known in ((144, True), (128, False)):
        model = model_of(config | {"query_pre_attn_scalar": scalar})
        if is_known:
            assert target.metadata(model, lambda model=model: file_shapes(model, target), lambda name: [])  # type: ignore[misc]
        else:
            with pytest.raises(CheckpointError, match="a scale other than 144"):
                target.metadata(model, dict, lambda name: [])
