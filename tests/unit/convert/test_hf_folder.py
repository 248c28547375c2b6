"""Hugging Face folders: what is exported is what is loaded, and nothing is misread or half-written."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from archetype import spec
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.convert import hf_folder
from archetype.convert.hf_folder import read_model
from archetype.convert.source import read_hf_spec
from archetype.errors import ArchetypeError, CheckpointError, UnreadKeys
from archetype.families.llama import llama
from archetype.families.registry import designs
from archetype.generate import Sampling
from archetype.io import atomic
from archetype.io.weight_files import INDEX, SINGLE
from archetype.models.build import Model, build
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.unit.conftest import SOME
from tests.unit.convert.test_apply import equal

LLAMA = llama(num_layers=2, d_model=8, num_heads=2, d_ff=12, vocab_size=13, context_length=16)


def language_model(model: Model) -> LanguageModel:
    return LanguageModel(model.spec, model)


SHARDS = (None, 1000, 1)


@SOME
@pytest.mark.parametrize("sizes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_what_is_exported_is_loaded_bit_for_bit(
    models: dict[str, Model], name: str, tmp_path: Path, sizes: int
) -> None:
    """In one file, in shards, or in one for each tensor: a model in one of these ways, in `make soak` each in all."""
    for number in range(sizes):
        folder = tmp_path / str(number)
        exported_is_loaded(models[name], name, folder, SHARDS[([*models].index(name) + number) % 3])


def exported_is_loaded(model: Model, name: str, folder: Path, shard_bytes: int | None) -> None:
    folder.mkdir()
    family = "mistral" if name == "phi3" else name.split()[0]  # which computes what Phi-3 does
    assert export(language_model(model), folder / "out", shard_bytes=shard_bytes).name == family
    read = load(folder / "out")
    assert equal(read.model, model)
    assert read.spec.replace(name="", initialization=model.spec.initialization) == model.spec
    export(read, folder / "again", shard_bytes=shard_bytes)
    for path in (folder / "out").iterdir():
        assert (folder / "again" / path.name).read_bytes() == path.read_bytes()


def test_shards_hold_at_most_what_was_asked_and_the_index_lists_them(models: dict[str, Model], tmp_path: Path) -> None:
    export(language_model(models["llama"]), tmp_path / "out", shard_bytes=1000)
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files == [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    assert len(files) > 2
    tensors = {file: load_file(tmp_path / "out" / file) for file in files}
    assert index["weight_map"] == {name: file for file, inside in tensors.items() for name in inside}
    sizes = [sum(t.nbytes for t in inside.values()) for inside in tensors.values()]
    assert max(sizes) <= 1000
    assert index["metadata"] == {"total_size": sum(sizes)}


def test_the_configuration_has_the_ids_and_the_type(models: dict[str, Model], tmp_path: Path) -> None:
    tokenizer = train_tokenizer("characters", "hello", None)
    tokenizer.bos, tokenizer.eos = 1, (2, 3)
    lm = LanguageModel(models["llama"].spec, models["llama"], tokenizer, Sampling(temperature=0.5), {"pad_token_id": 0})
    export(lm, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    expected = {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "dtype": "float32", "model_type": "llama"}
    assert expected.items() <= config.items()
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0} | {
        "do_sample": True, "temperature": 0.5
    }  # fmt: skip
    read = load(tmp_path / "out")
    assert (read.tokenizer.bos, read.tokenizer.eos, read.sampling) == (1, (2, 3), lm.sampling)


BLOCK = LLAMA.layers[0]
NORM = spec.LayerNorm()
INEXPRESSIBLE = {
    "layer norm": ({"layers": (BLOCK.replace(wiring=spec.PreNorm(norm=NORM)),)}, "layers[*].wiring.norm.kind"),
    "one layer norm": ({"layers": (BLOCK, BLOCK.replace(wiring=spec.PreNorm(norm=NORM)))}, "layers[1].wiring.norm"),
    "post-norm": ({"layers": (BLOCK.replace(wiring=spec.PostNorm(norm=spec.RMSNorm())),)}, "layers[*].wiring.kind"),
    "interleaved": (
        {"layers": (BLOCK.replace(mixer=BLOCK.mixer.replace(position=spec.Rotary(interleaved=True))),)},
        "layers[*].mixer.position.interleaved",
    ),
    "no positions": (
        {"layers": (BLOCK.replace(mixer=BLOCK.mixer.replace(position=spec.NoPosition())),)},
        "layers[0].mixer.position",
    ),
    "scale": ({"layers": (BLOCK.replace(mixer=BLOCK.mixer.replace(scale=0.3)),)}, "layers[*].mixer.scale"),
    "one bias": (
        {"layers": (BLOCK.replace(mixer=BLOCK.mixer.replace(bias={"q": True})),)}, "layers[*].mixer.bias"
    ),
    "not gated": (
        {"layers": (BLOCK.replace(feedforward=spec.MLP(d_ff=12, activation="silu")),)}, "layers[0].feedforward"
    ),
    "hybrid": (
        {"layers": (BLOCK, BLOCK.replace(mixer=BLOCK.mixer.replace(num_kv_heads=1)))}, "layers[1].mixer.num_kv_heads"
    ),
    "head bias": ({"head": spec.LanguageModelHead(bias=True)}, "head.bias"),
    "scaled embedding": ({"embedding": spec.Embedding(scale=2.0)}, "embedding.scale"),
    "learned positions": ({"embedding": spec.Embedding(position=spec.Learned())}, "embedding.position"),
    "other final norm": ({"final_norm": spec.RMSNorm(eps=0.1)}, "layers[*].wiring.norm.eps"),
}  # fmt: skip


@pytest.mark.parametrize("case", INEXPRESSIBLE)
def test_what_a_format_cannot_express_is_named_before_anything_is_written(tmp_path: Path, case: str) -> None:
    changes, place = INEXPRESSIBLE[case]
    lm = language_model(build(LLAMA.replace(**changes)))
    with pytest.raises(CheckpointError) as caught:
        export(lm, tmp_path / "out", family="llama")
    assert caught.value.place.startswith(place)
    assert "another family" in caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_an_unknown_family_is_refused(models: dict[str, Model], tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=f"family: 'rnn' is not a published format; use one of {', '.join(designs()[:9])}"
    ):
        export(language_model(models["gpt2"]), tmp_path / "out", family="rnn")


def configured(folder: Path, text: str | None = None, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes) if text is None else text)
    return file


def refusal(folder: Path) -> str:
    with pytest.raises(ArchetypeError) as caught:
        load(folder)
    return str(caught.value)


# A key of another family, where it is not `conv_kernel`.
FOREIGN = dict.fromkeys(("mamba", "mamba2"), "num_key_value_heads")


@SOME
def test_a_key_that_no_class_of_the_family_reads_is_named_and_passed(folder: Path, name: str) -> None:
    """Be it another family's or nobody's."""
    before, read = (folder / "config.json").read_text(), load(folder)
    for key in ("window_size", "rope_theta_base", "__class__", FOREIGN.get(name, "conv_kernel")):
        with case(key):
            configured(folder, before)
            file = configured(folder, **{key: 2})
            with pytest.warns(UnreadKeys) as told:
                again = load(folder)
            named = f"{file}: no {json.loads(before)['model_type']} class reads {key}"
            assert [str(one.message) for one in told] == [named]
            assert again.spec == read.spec and equal(again.model, read.model)


@SOME
def test_a_key_that_a_class_of_the_family_may_read_is_refused_by_name(folder: Path) -> None:
    """One that the class reads and that is not understood here, and any in a file of a later version."""
    before = (folder / "config.json").read_text()
    for key, beside in (("per_layer_config", {}), ("window_size", {"transformers_version": "99.0.1"})):
        with case(key):
            configured(folder, before)
            file = configured(folder, **{key: {}}, **beside)
            expected = f"{file}: {key}: is not supported for this family; remove it if it does not change the output"
            assert refusal(folder) == expected


COMMON = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
LLAMA_SIZES = (*COMMON, "max_position_embeddings", "num_key_value_heads", "head_dim")
SIDES = tuple(f"{side}_{key}" for side in ("encoder", "decoder") for key in ("layers", "attention_heads", "ffn_dim"))
FLA_SIZES = (
    "hidden_size", "num_hidden_layers", "intermediate_size", "num_heads", "vocab_size", "max_position_embeddings",
)  # fmt: skip
SIZES = {
    **dict.fromkeys(("gla", "retnet", "delta_net"), FLA_SIZES),
    "rwkv7": (*FLA_SIZES[:3], "head_dim", "decay_low_rank_dim", "vocab_size"),
    "gpt2": ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"),
    "llama": LLAMA_SIZES,
    "mistral": (*LLAMA_SIZES, "sliding_window"),
    "mixtral": (*LLAMA_SIZES, "sliding_window", "num_local_experts", "num_experts_per_tok"),
    "qwen2": (*LLAMA_SIZES, "sliding_window"),
    "gemma": LLAMA_SIZES,
    "gemma2": (*LLAMA_SIZES, "sliding_window", "query_pre_attn_scalar"),
    "deepseek_v2": (
        *COMMON, "max_position_embeddings", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
    ),
    **dict.fromkeys(("qwen3", "olmo2", "phi3", "smollm3"), LLAMA_SIZES),
    "qwen3_moe": (*COMMON[:-1], "num_experts_per_tok", "moe_intermediate_size", "num_local_experts"),
    "gemma3_text": (*LLAMA_SIZES, "sliding_window", "query_pre_attn_scalar"),
    "gpt_oss": (*LLAMA_SIZES, "sliding_window", "num_local_experts", "num_experts_per_tok"),
    "deepseek_v3": (
        *COMMON, "max_position_embeddings", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
        "n_group", "topk_group",
    ),
    "mamba2": (
        "vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_heads", "head_dim",
        "state_size", "n_groups", "conv_kernel", "chunk_size",
    ),
    "bloom": ("vocab_size", "seq_length", "hidden_size", "n_layer", "n_head"),
    "mpt": ("vocab_size", "max_seq_len", "d_model", "n_layers", "n_heads"),
    "mamba": (
        "vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "expand", "state_size",
        "conv_kernel", "time_step_rank",
    ),
    "bert": (*COMMON, "max_position_embeddings", "type_vocab_size"),
    "longformer": (*COMMON, "max_position_embeddings", "type_vocab_size", "attention_window"),
    "big_bird": (*COMMON, "max_position_embeddings", "type_vocab_size", "block_size", "num_random_blocks"),
    "vit": (*COMMON[1:], "image_size", "patch_size", "num_channels"),
    "modernbert": (*COMMON, "max_position_embeddings", "local_attention"),
    "eurobert": (*COMMON, "max_position_embeddings", "num_key_value_heads", "head_dim"),
    "deberta-v2": (*COMMON, "max_position_embeddings"),
    "t5": (
        "vocab_size", "n_positions", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads",
        "relative_attention_num_buckets", "relative_attention_max_distance",
    ),
    "marian": ("vocab_size", "decoder_vocab_size", "max_position_embeddings", "d_model", *SIDES),
    "llada": ("vocab_size", "max_sequence_length", "d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size"),
    "Dream": (*COMMON, "max_position_embeddings", "num_key_value_heads"),
}  # fmt: skip
FLA_NUMBERS = ("norm_eps", "expand_k", "expand_v", "initializer_range")
LLAMA_NUMBERS = ("rms_norm_eps", "attention_dropout", "initializer_range", "rope_theta", "partial_rotary_factor")
BERT_NUMBERS = ("layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
NUMBERS = {
    **dict.fromkeys(("gla", "retnet", "delta_net"), FLA_NUMBERS),
    "rwkv7": ("norm_eps", "initializer_range"),
    "gpt2": ("layer_norm_epsilon", "embd_pdrop", "attn_pdrop", "resid_pdrop", "initializer_range"),
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "gemma"), LLAMA_NUMBERS),
    "gemma2": (*LLAMA_NUMBERS, "attn_logit_softcapping", "final_logit_softcapping"),
    "deepseek_v2": ("rms_norm_eps", "attention_dropout", "initializer_range", "rope_theta", "routed_scaling_factor"),
    **dict.fromkeys(("qwen3", "qwen3_moe", "olmo2", "phi3", "smollm3"), LLAMA_NUMBERS),
    "gemma3_text": (  # whose class reads a factor in the section of rotary positions alone
        *LLAMA_NUMBERS[:-1],
        "rope_local_base_freq",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ),
    "gpt_oss": (*LLAMA_NUMBERS, "swiglu_alpha", "swiglu_limit"),
    "deepseek_v3": ("rms_norm_eps", "attention_dropout", "initializer_range", "rope_theta", "routed_scaling_factor"),
    "mamba2": ("layer_norm_epsilon", "time_step_min", "time_step_max", "initializer_range"),
    "bloom": ("layer_norm_epsilon", "hidden_dropout", "attention_dropout", "initializer_range"),
    "mpt": ("layer_norm_epsilon", "resid_pdrop", "initializer_range"),
    "mamba": ("layer_norm_epsilon", "time_step_min", "time_step_max", "initializer_range"),
    **dict.fromkeys(("bert", "longformer", "big_bird", "vit"), BERT_NUMBERS),
    "modernbert": ("norm_eps", "embedding_dropout", "attention_dropout", "initializer_range"),
    "eurobert": ("rms_norm_eps", "attention_dropout", "initializer_range"),
    "deberta-v2": BERT_NUMBERS,
    "t5": ("layer_norm_epsilon", "dropout_rate"),
    "marian": ("dropout", "attention_dropout", "init_std"),
    "llada": ("rms_norm_eps", "attention_dropout", "init_std", "rope_theta"),
    "Dream": LLAMA_NUMBERS,
}
FLAGS = {
    **dict.fromkeys(("gla", "retnet"), ("tie_word_embeddings", "use_output_gate", "elementwise_affine")),
    "delta_net": ("tie_word_embeddings", "use_gate", "allow_neg_eigval"),
    "rwkv7": ("tie_word_embeddings", "norm_bias", "norm_first", "fuse_norm"),
    "gpt2": ("scale_attn_weights", "tie_word_embeddings", "add_cross_attention", "scale_attn_by_inverse_layer_idx"),
    "llama": ("attention_bias", "mlp_bias", "tie_word_embeddings"),
    "mistral": ("tie_word_embeddings",),
    "mixtral": ("tie_word_embeddings",),
    "qwen2": ("tie_word_embeddings", "use_sliding_window"),
    "gemma": ("tie_word_embeddings", "attention_bias", "use_bidirectional_attention"),
    "gemma2": ("tie_word_embeddings", "attention_bias", "use_bidirectional_attention"),
    "deepseek_v2": ("tie_word_embeddings", "attention_bias", "mlp_bias", "norm_topk_prob"),
    "qwen3": ("tie_word_embeddings", "use_sliding_window", "attention_bias"),
    "qwen3_moe": ("tie_word_embeddings", "use_sliding_window", "attention_bias", "norm_topk_prob"),
    "gemma3_text": ("tie_word_embeddings", "attention_bias", "use_bidirectional_attention"),
    **dict.fromkeys(("olmo2", "phi3", "gpt_oss"), ("tie_word_embeddings", "attention_bias")),
    "smollm3": ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"),
    "deepseek_v3": ("tie_word_embeddings", "attention_bias", "norm_topk_prob", "rope_interleave"),
    "mamba2": ("tie_word_embeddings", "use_bias", "use_conv_bias"),
    "bloom": ("tie_word_embeddings",),
    "mpt": ("tie_word_embeddings", "no_bias"),
    "mamba": ("tie_word_embeddings", "use_bias", "use_conv_bias"),
    "bert": ("tie_word_embeddings", "is_decoder", "add_cross_attention"),
    "longformer": ("tie_word_embeddings", "is_decoder"),
    "big_bird": ("tie_word_embeddings", "use_bias", "rescale_embeddings"),
    "vit": ("qkv_bias",),
    "modernbert": ("tie_word_embeddings", "norm_bias", "attention_bias", "mlp_bias", "decoder_bias"),
    "eurobert": ("tie_word_embeddings", "attention_bias", "mlp_bias"),
    "deberta-v2": ("tie_word_embeddings", "position_biased_input", "relative_attention", "share_att_key"),
    "t5": ("tie_word_embeddings", "scale_decoder_outputs"),
    "marian": ("tie_word_embeddings", "scale_embedding", "share_encoder_decoder_embeddings"),
    "llada": ("weight_tying", "rope", "include_bias"),
    "Dream": ("tie_word_embeddings", "use_sliding_window"),
}
# but RoBERTa and ALBERT, whose rows are BERT's
by_family = pytest.mark.parametrize("name", every(3, (name for name in designs() if name not in ("roberta", "albert"))))


@by_family
def test_every_size_that_is_none_is_named(folder: Path, name: str) -> None:
    before = (folder / "config.json").read_text()
    for key in SIZES[name]:
        for value in (0, -1, 1.5, "8", float("nan"), float("inf"), True, [], {}, 10**12):
            file = configured(folder, before)
            configured(folder, **{key: value})
            assert refusal(folder).startswith(f"{file}: {key}: "), value


@by_family
def test_every_number_that_is_none_is_named(folder: Path, name: str) -> None:
    before = (folder / "config.json").read_text()
    for key in NUMBERS[name]:
        for value in (-1, "0.1", float("nan"), float("inf"), -float("inf"), True, [], {}, 10**400):
            file = configured(folder, before)
            configured(folder, **{key: value})
            assert refusal(folder).startswith(f"{file}: {key}: "), value


@by_family
def test_every_flag_that_is_none_is_named(folder: Path, name: str) -> None:
    before = (folder / "config.json").read_text()
    for key in FLAGS[name]:
        for value in (1.5, "true", [True], {}):
            file = configured(folder, before)
            configured(folder, **{key: value})
            assert refusal(folder).startswith(f"{file}: {key}: "), value


@pytest.mark.parametrize(
    ("name", "key", "value", "what"),
    [
        ("llama", "hidden_size", 10**9, "1000000000 is too large; use at most 1048576"),
        ("llama", "num_hidden_layers", 10**9, "1000000000 is too large; use at most 10000"),
        ("gpt2", "n_layer", 2 * 10**9, "2000000000 is too large; use at most 10000"),
        ("gpt2", "n_positions", 2**40, f"{2**40} is too large; use at most {2**31}"),
        ("llama", "hidden_act", "mish", "unknown activation 'mish'; use one of "),
        ("llama", "rope_parameters", [1], "[1] is not a mapping; fix the file"),
        ("llama", "rope_parameters", {"rope_type": "linear"}, "factor: is missing; add it"),
        ("llama", "rope_parameters", {"rope_type": "linear", "factor": -1}, "factor: -1.0 is not positive; fix"),
        ("llama", "rope_parameters", {"rope_type": "ntk"}, "rope_type: unknown scaling 'ntk'; use one of"),
        ("llama", "rope_parameters", {"rope_type": "su"}, "short_factor: None is not a list of numbers; fix the file"),
        ("llama", "rope_parameters", {"rope_theta": 1e4, "beta": 1}, "beta: is not supported for this family"),
        ("llama", "original_max_position_embeddings", "x", "'x' is not a positive whole number; fix"),
        ("gpt2", "add_cross_attention", True, "True is not supported (cross-attention); only False is"),
    ],
)
def test_what_cannot_be_is_said(folder: Path, key: str, value: Any, what: str) -> None:
    file = configured(folder, **{key: value})
    assert refusal(folder).startswith(f"{file}: {key}: {what}")


@pytest.mark.parametrize("name", ["llama"])
def test_sizes_that_do_not_fit_each_other_are_said(folder: Path) -> None:
    file = configured(folder, num_key_value_heads=3)
    assert refusal(folder) == f"{file}: num_kv_heads: 3 does not divide num_heads 4; use 1, 2 or 4"
    configured(folder, num_key_value_heads=2, head_dim=3)
    assert refusal(folder).startswith(f"{file}: head_dim: 3 features cannot be paired for rotary positions")


@pytest.mark.parametrize("name", ["llama"])
def test_more_layers_than_tensors_are_refused_before_they_are_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_folder, "build_on_meta", None)  # would fail if it were called
    file = configured(folder, num_hidden_layers=10_000)
    assert refusal(folder).startswith(f"{file}: describes 10000 layers, but there are only 21 tensors; does it")


def test_a_family_that_is_none_is_named(folder: Path) -> None:
    for value in (None, 7, ["llama"], {}):
        with case(value):
            file = configured(folder, model_type=value)
            cause = f"{value!r} is not a model type; `archetype list` shows the registered families"
            assert refusal(folder) == f"{file}: model_type: {cause}"


def test_a_damaged_configuration_is_named(folder: Path) -> None:
    for text in ("", "{", "[]", "7", "null", "[" * 100_000, '{"a":' * 100_000, "1" * 5000):
        with case(text[:20]):
            file = configured(folder, text)
            assert refusal(folder).startswith(f"{file}:")


def test_an_id_that_is_none_is_refused(models: dict[str, Model], tmp_path: Path) -> None:
    tokenizer = train_tokenizer("characters", "hello", None)
    export(LanguageModel(models["gpt2"].spec, models["gpt2"], tokenizer), tmp_path / "out")
    (tmp_path / "out" / "generation_config.json").unlink()
    before = (tmp_path / "out" / "config.json").read_text()
    for key, value in product(("bos_token_id", "eos_token_id"), ("x", 1.5, {}, [[1]])):
        with case(key, value):
            configured(tmp_path / "out", before)
            configured(tmp_path / "out", **{key: value})
            expected = f"{tmp_path / 'out' / 'config.json'}: {key}: {value!r} is not a token id; fix the file"
            assert refusal(tmp_path / "out") == expected


def test_a_place_that_is_no_model_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == (
        f"{tmp_path / 'none'}: there is no such folder; pass a run directory, a Hugging Face folder or a GGUF file"
    )
    assert refusal(tmp_path).startswith(f"{tmp_path}: is neither a run directory (spec.yaml) nor a Hugging Face folder")


def test_nothing_is_written_over(models: dict[str, Model], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(CheckpointError, match="already exists; choose another folder or remove it"):
        export(language_model(models["gpt2"]), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_nothing_is_written_below_a_file(models: dict[str, Model], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(CheckpointError, match=r"mine/out: cannot be written: "):
        export(language_model(models["gpt2"]), tmp_path / "mine" / "out")
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("written", [SINGLE, "config.json", "generation_config.json", "tokenizer"])
def test_an_export_that_fails_leaves_nothing(
    models: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    tokenizer = train_tokenizer("characters", "hello", None)
    intact = atomic.write_with

    def full(path: Path, write: Any) -> None:
        if path.name.startswith(written):
            raise CheckpointError(str(path), "cannot be written: No space left on device")
        intact(path, write)

    monkeypatch.setattr(atomic, "write_with", full)
    monkeypatch.setattr(type(tokenizer), "save", lambda self, folder: full(folder / "tokenizer", None))
    with pytest.raises(CheckpointError, match="No space left on device"):
        export(LanguageModel(models["gpt2"].spec, models["gpt2"], tokenizer), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_specification_alone_is_read_without_weights(models: dict[str, Model], name: str, folder: Path) -> None:
    (folder / SINGLE).unlink()
    family, model_spec = read_hf_spec(folder)
    assert family.name == name.split()[0]
    assert model_spec.stacks == models[name].spec.stacks
    with pytest.raises(CheckpointError, match="there is neither"):
        read_model(folder)
