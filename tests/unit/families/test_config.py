"""Published configurations: read whole or refused, written back without loss."""

import copy
from typing import Any

import pytest

from archetype import families, spec
from archetype.errors import CheckpointError, SpecError
from archetype.families import FAMILIES
from archetype.families.format import TRAINING_ONLY

PRESETS = sorted(name for family in families.PUBLISHED.values() for name in family.presets)

# As published on huggingface.co, shortened by nothing.
GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
}  # fmt: skip
LLAMA_2_7B = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
LLAMA_32_1B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.45.0",
    "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
    "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.37.2", "use_cache": True, "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
GEMMA_2B = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2,
    "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
    "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    "transformers_version": "4.38.0.dev0", "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
GEMMA2_2B = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32",
    "transformers_version": "4.42.4", "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
PUBLISHED = {
    "gpt2": GPT2,
    "llama-2-7b": LLAMA_2_7B,
    "llama-3.2-1b": LLAMA_32_1B,
    "mistral-7b": MISTRAL_7B,
    "qwen2-7b": QWEN2_7B,
    "gemma-2b": GEMMA_2B,
    "gemma2-2b": GEMMA2_2B,
}


def read(config: dict[str, Any]) -> spec.ModelSpec:
    family = families.family_of(config)
    assert family is not None
    return family.format.spec_from(config)


def of_architecture(differences: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
    return [change for change in differences if not set(change[0].split(".")) & set(TRAINING_ONLY)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_the_preset_of_its_name(name: str) -> None:
    assert of_architecture(spec.differences(read(PUBLISHED[name]), families.preset(name))) == []


def test_a_published_configuration_keeps_its_dropout() -> None:
    found = read(GPT2)
    assert (found.embedding.dropout, found.layers[0].dropout, found.layers[0].mixer.dropout) == (0.1, 0.1, 0.1)


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_written_reads_back_the_same(name: str) -> None:
    preset = families.preset(name)
    family = families.family_for(preset)
    assert family is families.presets()[name][0]
    config = family.format.config_for(preset)
    assert config["model_type"] == family.name
    # how training begins is no more than a hint, for which some formats have no word
    assert read(config).changed(name=name, initialization=preset.initialization) == preset


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_unknown_key_is_refused_by_name(name: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(PUBLISHED[name] | {"num_experts": 4})
    message = "config.json: num_experts: is not understood for this family; remove it if it changes no number"
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (GPT2, {"scale_attn_by_inverse_layer_idx": True},
         "config.json: scale_attn_by_inverse_layer_idx: True is not supported (attention scaled by layer); "
         "only False is"),
        (GPT2, {"add_cross_attention": True},
         "config.json: add_cross_attention: True is not supported (cross-attention); only False is"),
        (GPT2, {"activation_function": "mish"}, "config.json: activation_function: there is no activation 'mish'; "
         "known are relu, gelu, gelu_new, gelu_pytorch_tanh, silu, swish, tanh, sigmoid, relu2, quick_gelu"),
        (GPT2, {"n_embd": "768"}, "config.json: n_embd: '768' is not a positive whole number; mend the file"),
        (GPT2, {"n_layer": 0}, "config.json: n_layer: 0 is not a positive whole number; mend the file"),
        (LLAMA_2_7B, {"attention_bias": "no"},
         "config.json: attention_bias: 'no' is neither true nor false; mend the file"),
        (LLAMA_2_7B, {"rope_scaling": [1]}, "config.json: rope_scaling: [1] is not a mapping; mend the file"),
        (LLAMA_2_7B, {"rope_scaling": {"type": "linear"}},
         "config.json: rope_scaling: factor: is missing; add it"),
        (LLAMA_2_7B, {"rope_scaling": {"type": "longrope", "factor": 2.0}},
         "config.json: rope_scaling: rope_type: there is no scaling 'longrope'; "
         "known are linear, dynamic, yarn, llama3"),
        (LLAMA_2_7B, {"rope_scaling": {"type": "linear", "factor": 2.0, "factr": 1}},
         "config.json: rope_scaling: factr: is not understood for this family; remove it if it changes no number"),
        (LLAMA_2_7B, {"partial_rotary_factor": 0.5},
         "config.json: partial_rotary_factor: this format turns whole heads; remove it"),
        (LLAMA_2_7B, {"num_key_value_heads": 5},
         "config.json: num_kv_heads: 5 does not divide num_heads 32; use 1, 2, 4, 8, 16 or 32"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(config: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, SpecError)) as caught:
        read(config | change)
    assert str(caught.value) == message


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"])
def test_a_huge_size_is_refused_before_anything_is_made(key: str) -> None:
    with pytest.raises((CheckpointError, SpecError), match="is too large"):
        read(LLAMA_2_7B | {key: 10**12})


KNOWN = (
    "bert, big_bird, bloom, deepseek_v2, gemma, gemma2, gpt2, llama, longformer, mamba, marian, mistral, mixtral, mpt, "
    "qwen2, t5, vit"
)


@pytest.mark.parametrize("model_type", [None, 3, ["gpt2"]])
def test_a_file_that_names_no_family_is_refused(model_type: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(GPT2 | {"model_type": model_type})
    expected = f"config.json: model_type: {model_type!r} names no family; registered are {KNOWN}"
    assert str(caught.value) == expected


INEXPRESSIBLE = [
    ("gpt2-tiny", "gpt2", "layers[*].mixer.position={kind: rotary}", "layers[*].mixer.position.kind"),
    ("gpt2-tiny", "gpt2", "layers[*].mixer.num_kv_heads=2", "layers[*].mixer.num_kv_heads"),
    ("gpt2-tiny", "gpt2", "layers[*].mixer.scale=0.5", "layers[*].mixer.scale"),
    ("gpt2-tiny", "gpt2", "embedding.scale=2.0", "embedding.scale"),
    ("gpt2-tiny", "gpt2", "head.bias=true", "head.bias"),
    ("gpt2-tiny", "gpt2", "layers[0].feedforward.d_ff=100", "layers[1].feedforward.d_ff"),
    ("gpt2-tiny", "gpt2", "final_norm.eps=0.1", "final_norm.eps"),
    ("llama-tiny", "llama", "layers[*].mixer.position.interleaved=true", "layers[*].mixer.position.interleaved"),
    ("llama-tiny", "llama", "layers[*].mixer.position.dim=8", "layers[0].mixer.position.dim"),
    ("llama-tiny", "llama", "layers[*].mixer.bias={q: true}", "layers[*].mixer.bias.q"),
    ("llama-tiny", "llama", "layers[*].feedforward.activation={kind: swish, beta: 2.0}", "activation"),
    ("llama-tiny", "llama", "layers[*].wiring.kind=post_norm", "layers[*].wiring.kind"),
    ("llama-tiny", "llama", "layers[1].wiring.kind=post_norm", "layers[1].wiring.kind"),
    ("llama-tiny", "llama", "layers[1].mixer={kind: lstm}", "layers[1].mixer.kind"),
    ("llama-tiny", "llama", "layers[*].mixer.qk_norm={kind: rms}", "layers[*].mixer.qk_norm.kind"),
    ("llama-tiny", "gpt2", "d_model=64", "layers[0].wiring.norm"),
    ("gpt2-tiny", "llama", "d_model=64", "final_norm"),
]


@pytest.mark.parametrize(("name", "family", "change", "place"), INEXPRESSIBLE)
def test_what_a_format_cannot_say_is_refused_by_field(name: str, family: str, change: str, place: str) -> None:
    changed = spec.assign(families.preset(name), [change])
    with pytest.raises(CheckpointError) as caught:
        FAMILIES[family].format.config_for(changed)
    assert caught.value.place == place


# Of each kind of model and of part that no format has: where gpt2 says so, and where llama does.
FOREIGN = {
    "ngram-tiny": ("kind", "kind"),
    "lstm-tiny": ("layers[0].wiring", "final_norm"),
    "seq2seq-lstm-tiny": ("kind", "kind"),
    "transformer-tiny": ("kind", "kind"),
    "gpt3-tiny": ("layers[1].mixer.pattern.kind", "final_norm"),
    "megabyte-tiny": ("kind", "kind"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_no_format_has_is_refused_in_one_line_that_says_why_for_each(name: str) -> None:
    model = families.preset(name)
    with pytest.raises(CheckpointError) as caught:
        families.family_for(model)
    start = f"{name}: no family can express it; "
    assert str(caught.value).startswith(start)
    reasons = dict(reason.split(": ", 1) for reason in str(caught.value).removeprefix(start).split("; "))
    assert list(reasons) == list(families.PUBLISHED)
    places = dict(zip(("gpt2", "llama"), FOREIGN[name], strict=True))
    assert {family: reasons[family].startswith(f"{place} ") for family, place in places.items()} == {
        "gpt2": True,
        "llama": True,
    }, reasons


def test_a_refusal_names_the_kind_that_could_be_written() -> None:
    with pytest.raises(CheckpointError) as caught:
        FAMILIES["llama"].format.config_for(families.preset("mixtral-tiny"))
    assert str(caught.value) == (
        "layers[0].feedforward: only kind gated can be written here, and this is experts; "
        "change the specification or export to another family"
    )


def test_a_family_without_a_format_is_no_way_out() -> None:
    with pytest.raises(
        CheckpointError, match=r"^ngram: this family has no published format; export to another family$"
    ):
        FAMILIES["ngram"].format.config_for(families.preset("ngram-tiny"))


def test_reading_changes_nothing_in_the_configuration() -> None:
    before = copy.deepcopy(LLAMA_32_1B)
    read(LLAMA_32_1B)
    assert before == LLAMA_32_1B


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError) as caught:
        families.preset("llama-2-8b")
    assert str(caught.value).startswith("llama-2-8b: there is no preset, file or folder of this name; did you mean ")
