"""Types that are read by their files alone, as published and not as transformers writes them, every tensor random.

Each has the same answers for a whole text and for one that is read token by token from a cache, a mistake that must
show, and the same file after it is written back.
"""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OlmoHybridConfig,
    OlmoHybridForCausalLM,
    PreTrainedModel,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

import archetype
from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
from archetype.estimate.report import total_parameters
from archetype.hf.cache import NAME
from tests.helpers.causal import in_chunks
from tests.helpers.examples import every
from tests.helpers.published import EXACT, WRONG, Change, same_tensors, swap
from tests.helpers.weights import distance
from tests.helpers.zoo import drawn

TOKENS = torch.cat((torch.arange(4, 61), torch.arange(4, 24)))[None] % 61
PROMPT = 9  # tokens that are read at once, before those that are read one by one
READ = 41  # tokens that are read so, more than any window, table of positions or block of these files has
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


Tensors = dict[str, Tensor]


def as_it_is(tensors: Tensors) -> Tensors:
    return tensors


def written(values: dict[str, Any], folder: Path, publish: Callable[[Tensors], Tensors] = as_it_is) -> PreTrainedModel:
    """The model of transformers for a config.json, which is beside its tensors to the letter.

    Args:
        publish: what makes published tensors of those that transformers writes.
    """
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float()).save_pretrained(folder)
        file.write_text(json.dumps(values))
        save_file(publish(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def their_steps(model: Any, tokens: Tensor) -> Tensor:
    """The logits of a prompt, and of each further token with the cache that is there."""
    output = model(tokens[:, :PROMPT], use_cache=True)
    logits = [output.logits]
    for position in range(PROMPT, tokens.shape[1]):
        output = model(tokens[:, position : position + 1], use_cache=True, **{NAME: output[NAME]})
        logits.append(output.logits)
    return torch.cat(logits, 1)


def read(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return archetype.load(folder, dtype="float32")


@torch.no_grad()
def check(
    values: dict[str, Any],
    mistake: Change,
    folder: Path,
    publish: Callable[[Tensors], Tensors] = as_it_is,
    their_cache: bool = True,
) -> Any:
    """Compare whole texts, texts read step by step, a model with a mistake, and the file that is written back.

    Args:
        their_cache: whether transformers reads step by step; it does not without a layer of attention.
    """
    theirs = written(values, folder / "theirs", publish)
    lm = read(folder / "theirs")
    assert lm.family is not None and lm.family.reading is not None and not lm.family.reading.unknown
    assert sum(parameter.numel() for parameter in lm.model.parameters()) == total_parameters(lm.spec)
    whole = theirs(TOKENS, use_cache=False).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    begin = TOKENS[:, :READ]
    ours = in_chunks(lm.model, begin, lm.model.new_state(1, READ), list(range(PROMPT, READ)))
    assert distance(ours, their_steps(theirs, begin) if their_cache else whole[:, :READ]) < EXACT
    archetype.export(lm, folder / "written")
    same_tensors(folder / "theirs", folder / "written")
    assert json.loads((folder / "written" / "config.json").read_text()) == values
    mistake(lm.model)
    assert distance(lm.model(TOKENS).logits, whole) > WRONG
    return read(folder / "theirs")


EXAONE: dict[str, Any] = SIZES | {
    "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "activation_function": "silu",
    "attention_dropout": 0.0, "embed_dropout": 0.0, "head_dim": 8, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-3, "num_layers": 3, "rope_scaling": None, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.41.0", "use_cache": True,
}  # fmt: skip
LLAMA3 = {
    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": LLAMA3, "rope_theta": 1000.0, "tie_word_embeddings": True, "transformers_version": "4.43.1"},
        {"head_dim": 12, "attention_bias": True, "mlp_bias": True},
    ],
    ids=["3.0", "3.5", "with biases"],
)
def test_exaone(changes: dict[str, Any], tmp_path: Path) -> None:
    """Names of GPT-2 around Llama's computation: RMSNorm, though the key of its epsilon names the other norm."""
    mistake = swap("blocks.1.feedforward.gate.weight", "blocks.1.feedforward.up.weight")  # c_fc_0 is the gate
    lm = check(EXAONE | changes, mistake, tmp_path)
    norms = {lm.spec.final_norm.kind, *(block.wiring.norm.kind for block in lm.spec.layers)}
    assert norms == {"rms"} and lm.spec.final_norm.eps == 1e-3
    assert "norm_kind" not in lm.family.reading.alternatives


OLMO_HYBRID: dict[str, Any] = SIZES | {
    "architectures": ["OlmoHybridForCausalLM"], "model_type": "olmo_hybrid", "attention_bias": False,
    "hidden_act": "silu", "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_allow_neg_eigval": True, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 6, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_value_head_dim": 10, "num_hidden_layers": 3, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": None}, "tie_word_embeddings": False,
}  # fmt: skip
KEYS, VALUES = 2 * 6, 4 * 10  # channels of the convolutions of queries and keys, and of values


def as_olmo_hybrid(tensors: Tensors) -> Tensors:
    """Three convolutions of their own sizes, where transformers writes thirds, and attention's norms as they are."""
    published = {}
    for name, tensor in tensors.items():
        start, _, kind = name.partition("_conv1d")
        if kind:
            joined = torch.cat([tensors[f"{start[:-1]}{part}_conv1d.weight"] for part in "qkv"])
            sizes = {"q": (0, KEYS), "k": (KEYS, 2 * KEYS), "v": (2 * KEYS, 2 * KEYS + VALUES)}
            begin, end = sizes[start[-1]]
            published[name] = joined[begin:end].clone()
        else:
            # transformers names the norms of delta layers in all layers
            name = re.sub(r"(layers\.1\.)feedforward_layer_norm", r"\1post_attention_layernorm", name)
            published[name] = tensor
    return published


@pytest.mark.parametrize("publish", [as_it_is, as_olmo_hybrid])
@pytest.mark.parametrize(
    ("changes", "position"),
    every(
        2,
        (
            pytest.param(*one)
            for one in [
                ({}, "none"),
                ({"rope_parameters": None}, "rotary"),  # the class's theta, not the absence of positions
                ({"rope_parameters": ..., "rope_scaling": None, "rope_theta": None}, "none"),
                (
                    {"rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}, "linear_allow_neg_eigval": False},
                    "rotary",
                ),
                ({"rope_parameters": {"rope_theta": None, "rope_type": "default"}, "rope_theta": 77.0}, "none"),
            ]
        ),
    ),
)
def test_olmo_hybrid(
    changes: dict[str, Any], position: str, publish: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    values = {key: value for key, value in (OLMO_HYBRID | changes).items() if value is not ...}

    def shifted(model: Any) -> None:
        """The convolution's channels one further: a mistake in where q, k and v begin."""
        weight = model.get_parameter("blocks.0.mixer.conv.weight")
        weight.copy_(weight.roll(1, 0))

    lm = check(values, shifted, tmp_path, publish)
    first, second, _ = lm.spec.layers
    assert (first.wiring.kind, second.wiring.kind) == ("pre_norm", "output_norm")
    assert second.mixer.position.kind == position and first.mixer.eps == 1e-5
    assert first.mixer.negative_eigenvalues == values["linear_allow_neg_eigval"]
    of_queries = load_file(tmp_path / "theirs" / "model.safetensors")["model.layers.0.linear_attn.q_conv1d.weight"]
    assert len(of_queries) == (KEYS if publish is as_olmo_hybrid else -(-(2 * KEYS + VALUES) // 3))


def test_convolutions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def shorter(tensors: Tensors) -> Tensors:
        name = "model.layers.0.linear_attn.v_conv1d.weight"
        return as_olmo_hybrid(tensors) | {name: as_olmo_hybrid(tensors)[name][:-1].clone()}

    folder = tmp_path / "model"
    written(OLMO_HYBRID, folder)
    tensors = load_file(folder / "model.safetensors")
    for change, message in (
        (shorter(tensors), "a convolution whose 63 channels do not fit 2 key heads"),
        ({name: t for name, t in tensors.items() if "0.linear_attn.k_conv1d" not in name}, "a mixer without k_conv"),
    ):
        save_file(change, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            archetype.load(folder)
    # the class takes as many as attention has, and the file says nothing
    silent = OLMO_HYBRID | {"linear_num_key_heads": None, "num_attention_heads": 8}
    (folder / "config.json").write_text(json.dumps(silent))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="linear_num_key_heads: is missing"):
        archetype.load(folder)


def test_olmo_hybrid_7b_is_counted_as_released() -> None:
    """Of 523 tensors, as in its file, by the sizes that are the defaults of transformers' class."""
    config = OlmoHybridConfig()
    with torch.device("meta"):
        model = OlmoHybridForCausalLM(config)
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    widths = {"q": keys, "k": keys, "v": config.linear_num_value_heads * config.linear_value_head_dim}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.state_dict().items():
        start, conv, _ = name.rpartition("conv1d.weight")
        split = {f"{start}{part}_{conv}": (width, *tensor.shape[1:]) for part, width in widths.items()}
        shapes |= split if conv else {name: tuple(tensor.shape)}
    spec = read_unknown(config.to_dict(), shapes).format.spec_from(config.to_dict())
    assert len(shapes) == 523 and total_parameters(spec) == model.num_parameters() == 7_430_870_688


LINEAR: dict[str, Any] = {
    "full_attn_layers": [], "head_dim": 6, "kda_layers": [1, 2], "num_heads": 3, "short_conv_kernel_size": 3,
}  # fmt: skip
KIMI_LINEAR: dict[str, Any] = SIZES | {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "first_k_dense_replace": 1, "head_dim": 72,
    "hidden_act": "silu", "kv_lora_rank": 10, "mla_use_nope": True, "model_max_length": 128, "moe_renormalize": True,
    "linear_attn_config": LINEAR,
    "moe_intermediate_size": 16, "num_expert_group": 1, "num_experts": 4, "num_experts_per_token": 2,
    "num_hidden_layers": 2, "num_shared_experts": 1, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "rms_norm_eps": 1e-5, "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "topk_group": 1,
    "v_head_dim": 8,
}  # fmt: skip
FOUR = {"num_key_value_heads": 4}  # of latent attention, as many as queries have
BAILING_HYBRID: dict[str, Any] = SIZES | {
    "architectures": ["BailingHybridForCausalLM"], "model_type": "bailing_hybrid", "first_k_dense_replace": 2,
    "head_dim": 8, "hidden_act": "silu", "kv_lora_rank": 10, "layer_group_size": 3, "num_hidden_layers": 2,
    "num_nextn_predict_layers": 0, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "rms_norm_eps": 1e-6, "rope_theta": 77.0, "kda_lower_bound": -3.0, "kda_safe_gate": True,
    "short_conv_kernel_size": 4, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "bound"),
    every(
        2,
        (
            pytest.param(*one)
            for one in [
                (KIMI_LINEAR, None),
                (KIMI_LINEAR | {"moe_renormalize": False}, None),
                (BAILING_HYBRID, -3.0),
                (
                    KIMI_LINEAR | FOUR | {"linear_attn_config": LINEAR | {"full_attn_layers": [2], "kda_layers": [1]}},
                    None,
                ),
                (BAILING_HYBRID | FOUR | {"layer_group_size": 2}, -3.0),
            ]
        ),
    ),
    ids=["kimi linear", "not renormalized", "ling 3", "kimi linear with latents", "ling 3 with latents"],
)
def test_delta_attention(values: dict[str, Any], bound: float | None, tmp_path: Path) -> None:
    """Kimi delta attention as Kimi Linear and Ling 3.0 have it, in all layers, and before one of latent attention."""
    mistake = swap("blocks.0.mixer.q.weight", "blocks.0.mixer.k.weight")
    lm = check(values, mistake, tmp_path, their_cache=False)
    mixer = lm.spec.layers[0].mixer
    assert (mixer.kind, mixer.decay, mixer.decay_bound, mixer.gate) == ("gated_delta_net", "channel", bound, "sigmoid")
    is_kimi, last = values["model_type"] == "kimi_linear", lm.spec.layers[1].mixer
    assert mixer.decay_rank == mixer.gate_rank == (6 if is_kimi else None)
    if last.kind == "latent":  # Kimi's has no positions, and Ling's has a gate for each head
        assert last.position.is_absent == is_kimi and (last.gate is None) == is_kimi


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (KIMI_LINEAR | {"linear_attn_config": LINEAR | {"safe_gate": True}},
         r"layers\.0: needs linear attention with key safe_gate"),
        (BAILING_HYBRID | {"kda_lower_bound": 1.0}, "kda_lower_bound: 1.0 is not a negative logarithm"),
    ],
    ids=["unknown key", "bound"],
)  # fmt: skip
def test_what_delta_attention_cannot_say_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(values, tmp_path / "model")
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "model")


# Layers as Nemotron-NAS has them: with another number of key heads, without attention, and without a network.
UNEVEN = [
    {"attention": {"no_op": False, "n_heads_in_group": 2}, "ffn": {"no_op": False, "ffn_mult": 5.25}},
    {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"no_op": False, "ffn_mult": 0.5}},
    {"attention": {"no_op": False, "n_heads_in_group": 4}, "ffn": {"no_op": True, "ffn_mult": None}},
    {"attention": {"no_op": False, "n_heads_in_group": 1}, "ffn": {"no_op": False, "ffn_mult": 13.0}},
]
OFF = {
    "replace_with_linear": False, "sparsify": None, "num_sink_tokens": None, "window_length": None,
    "unshifted_sink": False,
}  # fmt: skip
DECILM: dict[str, Any] = SIZES | {
    "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "attention_bias": False, "mlp_bias": False,
    "block_configs": [{name: OFF | keys for name, keys in block.items()} for block in UNEVEN],
    "auto_map": {"AutoModelForCausalLM": "modeling_decilm.DeciLMForCausalLM"}, "hidden_act": "silu",
    "intermediate_size": None, "num_key_value_heads": None, "num_hidden_layers": 4, "rms_norm_eps": 1e-5,
    "rope_scaling": LLAMA3, "rope_theta": 1000.0, "tie_word_embeddings": False,
}  # fmt: skip


class UnevenLayer(LlamaDecoderLayer):
    """Llama's layer without what a block leaves out, as `modeling_decilm.py` has it."""

    def __init__(self, config: LlamaConfig, number: int, block: dict[str, Any]) -> None:
        sizes = config.to_dict()
        if not block["attention"]["no_op"]:
            sizes["num_key_value_heads"] = config.num_attention_heads // block["attention"]["n_heads_in_group"]
        if not block["ffn"]["no_op"]:
            width = int(2 * block["ffn"]["ffn_mult"] * config.hidden_size / 3)
            sizes["intermediate_size"] = width if width % 256 == 0 else width + 256 - width % 256
        own = LlamaConfig(**sizes)
        own._attn_implementation = "sdpa"
        super().__init__(own, number)
        self.block = block
        if block["attention"]["no_op"]:
            del self.input_layernorm, self.self_attn
        if block["ffn"]["no_op"]:
            del self.post_attention_layernorm, self.mlp

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        if not self.block["attention"]["no_op"]:
            hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), **options)[0]
        if not self.block["ffn"]["no_op"]:
            hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states


def uneven_llama(values: dict[str, Any]) -> PreTrainedModel:
    """Transformers' Llama with layers of different sizes, every tensor random."""
    config = LlamaConfig(**{key: value for key, value in values.items() if value is not None})
    model = LlamaForCausalLM(config)
    blocks = enumerate(values["block_configs"])
    model.model.layers = torch.nn.ModuleList(UnevenLayer(config, number, block) for number, block in blocks)
    drawn(model).model.rotary_emb = LlamaRotaryEmbedding(config)  # whose frequencies were drawn too
    return model.eval()


@torch.no_grad()
def test_layers_of_uneven_sizes(tmp_path: Path) -> None:
    """DeciLM, which transformers has no class for: against its Llama, built of the layers that the keys describe."""
    theirs = uneven_llama(DECILM)
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DECILM))
    save_file(theirs.state_dict(), folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="has no class for it; check the assumptions"):
        read(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm: Any = archetype.load(folder, accept_unproved=True)
    layers = lm.spec.layers
    assert [layer.mixer.kind for layer in layers] == ["attention", "none", "attention", "attention"]
    assert [layer.feedforward.kind for layer in layers] == ["gated", "gated", "none", "gated"]
    assert [layers[number].mixer.num_kv_heads for number in (0, 2, 3)] == [2, 1, None]
    assert [layers[number].feedforward.d_ff for number in (0, 1, 3)] == [256, 256, 512]
    assert lm.family.reading.unknown == ()
    whole = theirs(TOKENS, use_cache=False).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    ours = in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts)
    assert distance(ours, their_steps(theirs, TOKENS)) < EXACT
    archetype.export(lm, tmp_path / "written")
    same_tensors(folder, tmp_path / "written")
    norm = lm.model.get_parameter("blocks.1.feedforward_norm.weight")
    norm.copy_(norm.roll(1))
    assert distance(lm.model(TOKENS).logits, whole) > WRONG


@pytest.mark.parametrize(
    ("number", "part", "change", "message"),
    [
        (0, "attention", {"n_heads_in_group": 4}, r"\[0\]: attention: n_heads_in_group: says 4, where the .* show 2"),
        (1, "attention", {"no_op": False}, r"\[1\]: attention: no_op: says False, where the layer's tensors show True"),
        (2, "ffn", {"no_op": False}, r"\[2\]: ffn: no_op: says False"),
        (3, "ffn", {"ffn_mult": 5.25}, r"\[3\]: ffn: ffn_mult: says 256, where the layer's tensors show 512"),
        (3, "attention", {"window_length": 8}, "needs attention with window_length in some layers"),
        (3, "attention", {"num_sink_tokens": 8}, "needs attention with num_sink_tokens in some layers"),
        (3, "ffn", {"moe": {"num_experts": 4}}, "needs a network with moe in some layers"),
        (3, "ffn", {"hidden_act": "gelu"}, "hidden_act: needs different activations in some layers"),
    ],
)
def test_blocks_that_their_tensors_contradict(number: int, part: str, change: dict[str, Any], message: str) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in uneven_llama(DECILM).state_dict().items()}
    values = json.loads(json.dumps(DECILM))
    values["block_configs"][number][part] |= change
    with pytest.raises(CheckpointError, match=message):
        read_unknown(values, shapes)
    values = DECILM | {"block_configs": DECILM["block_configs"][:3]}
    with pytest.raises(CheckpointError, match="block_configs: has no value for each of the 4 layers"):
        read_unknown(values, shapes)


def test_key_heads_of_each_layer_are_compared() -> None:
    """The key of the first DeciLM."""
    shapes = {name: tuple(tensor.shape) for name, tensor in uneven_llama(DECILM).state_dict().items()}
    stated = {"num_key_value_heads_per_layer": [2, 0, 1, 4]}
    spec: Any = read_unknown(DECILM | stated, shapes).format.spec_from(DECILM | stated)
    assert spec.layers[3].mixer.num_kv_heads is None
    with pytest.raises(CheckpointError, match=r"per_layer\[3\]: says 2, where the layer's tensors show 4"):
        read_unknown(DECILM | {"num_key_value_heads_per_layer": [2, 0, 1, 2]}, shapes)


def test_keys_of_single_layers_are_refused_where_there_are_any() -> None:
    """No class that is read here obeys them: transformers' Llama refuses most, and leaves out no network by `skip`."""
    shapes = {name: tuple(tensor.shape) for name, tensor in uneven_llama(DECILM).state_dict().items()}
    assert read_unknown(DECILM | {"per_layer_config": {}}, shapes)
    with pytest.raises(CheckpointError, match="per_layer_config: needs per-layer values of other keys"):
        read_unknown(DECILM | {"per_layer_config": {"0": {"skip": ["mlp"]}}}, shapes)
    sizes = SIZES | {"num_hidden_layers": 2, "hidden_act": "silu"}
    usual, skipping = (
        {name: tuple(p.shape) for name, p in LlamaForCausalLM(LlamaConfig(**sizes, **more)).named_parameters()}
        for more in ({}, {"per_layer_config": {"0": {"skip": ["mlp"]}}})
    )
    assert usual == skipping
    with pytest.raises(RuntimeError, match="'intermediate_size' is a per-layer attribute"):
        LlamaForCausalLM(LlamaConfig(**sizes, per_layer_config={"0": {"intermediate_size": 24}}))


def test_a_matrix_in_place_of_attention_is_named() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in uneven_llama(DECILM).state_dict().items()}
    shapes["model.layers.1.self_attn.linear_attn.weight"] = (32, 32)
    with pytest.raises(CheckpointError, match="needs a single matrix instead of attention or an MLP"):
        read_unknown(DECILM, shapes)


def test_nemotron_super_49b_is_counted_as_its_blocks_say(shared: Path) -> None:
    """49 billion parameters, by the shapes of the layers that its keys describe."""
    file = shared / "published" / "configs" / "nvidia__Llama-3_3-Nemotron-Super-49B-v1.json"
    values = json.loads(file.read_text())
    with torch.device("meta"):
        model = uneven_llama(values)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    spec: Any = read_unknown(values, shapes).format.spec_from(values)
    assert total_parameters(spec) == model.num_parameters() == 49_867_145_216
    assert sum(layer.mixer.kind == "none" for layer in spec.layers) == 31


# Types whose gate and up projections of all experts are in one tensor, which each has half of.
LARA: dict[str, Any] = SIZES | {
    "architectures": ["LaraMiniForCausalLM"], "model_type": "lara_mini", "attention_bias": False, "head_dim": 8,
    "hidden_act": "silu", "layer_types": ["linear_attention", "sliding_attention", "full_attention"],
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 10, "moe_intermediate_size": 20, "norm_topk_prob": True, "num_experts": 6,
    "num_experts_per_tok": 2, "num_hidden_layers": 3, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}, "shared_expert_intermediate_size": 12,
    "sliding_window": 8, "tie_word_embeddings": True,
}  # fmt: skip
del LARA["intermediate_size"]
M3: dict[str, Any] = SIZES | {
    "architectures": ["MiniMaxM3VLForCausalLM"], "model_type": "minimax_m3_vl_text", "dense_intermediate_size": 40,
    "head_dim": 8, "hidden_act": "swigluoai", "layer_types": ["full_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_local_experts": 6,
    "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}, "rotary_dim": 4,
    "routed_scaling_factor": 2.0, "shared_intermediate_size": 24, "swiglu_alpha": 1.3, "swiglu_limit": 0.25,
    "tie_word_embeddings": False,
}  # fmt: skip


def check_layouts(folder: Path, *layouts: str) -> None:
    """Other orders of the rows in the file are refused, since the small model of transformers differs."""
    for layout in layouts:
        with pytest.raises(CheckpointError, match="does not match transformers"):
            archetype.load(folder, overrides=[layout], accept_unproved=True)


@pytest.mark.parametrize(
    "changes",
    every(
        2,
        [
            {},
            {"norm_topk_prob": False, "attention_bias": True, "tie_word_embeddings": False},
            {"layer_types": ["full_attention", "linear_attention", "full_attention"], "linear_num_key_heads": 4},
        ],
    ),
)
def test_lara(changes: dict[str, Any], tmp_path: Path) -> None:
    """Queries, keys, values, gates and rates of a delta net in one tensor; layers without a window do not rotate."""

    def mistake(model: Any) -> None:
        name = next(name for name, _ in model.named_parameters() if name.endswith("mixer.a.weight"))
        model.get_parameter(name).copy_(model.get_parameter(name.replace(".a.", ".b.")))

    lm = check(LARA | changes, mistake, tmp_path)
    for kind, layer in zip((LARA | changes)["layer_types"], lm.spec.layers, strict=True):
        if kind != "linear_attention":
            assert layer.mixer.position.kind == ("rotary" if kind == "sliding_attention" else "none")
            assert layer.mixer.pattern.kind == ("window" if kind == "sliding_attention" else "full")
    if not changes:
        orders = "gate_up_order=up_gate", "gate_up_order=gate_up_in_turn", "delta_order=qkv_per_head"
        check_layouts(tmp_path / "theirs", *orders)


def test_minimax_m3_without_its_index(tmp_path: Path) -> None:
    """Clamped gates as in gpt-oss, but rows of gate and up in two halves, and norms to which 1 is added."""
    mistake = swap("blocks.1.feedforward.shared.gate.weight", "blocks.1.feedforward.shared.up.weight")
    lm = check(M3, mistake, tmp_path)
    assert {layer.feedforward.kind for layer in lm.spec.layers} == {"gated", "experts"}
    dense, sparse = (layer.feedforward for layer in lm.spec.layers)
    assert all((one.limit, one.unit_offset, one.activation.beta) == (0.25, True, 1.3) for one in (dense, sparse.expert))
    # the bound is met: with a larger one the logits are others
    larger = tmp_path / "larger"
    larger.mkdir()
    (larger / "config.json").write_text(json.dumps(M3 | {"swiglu_limit": 70.0}))
    (larger / "model.safetensors").write_bytes((tmp_path / "theirs" / "model.safetensors").read_bytes())
    with torch.no_grad():
        assert distance(read(larger).model(TOKENS).logits, lm.model(TOKENS).logits) > WRONG
    check_layouts(tmp_path / "theirs", "gate_up_order=up_gate", "gate_up_order=gate_up_in_turn")


@pytest.mark.parametrize(
    ("values", "change", "message"),
    [
        (M3, {"swiglu_alpha": ..., "model_type": "mystery"}, "swiglu_limit: needs clamped gates that differ"),
        (LARA, {"hidden_act": "gelu"}, "'gelu' after a convolution is not supported"),
    ],
)
def test_what_is_missing_is_named(values: dict[str, Any], change: dict[str, Any], message: str, tmp_path: Path) -> None:
    changed = {key: value for key, value in (values | change).items() if value is not ...}
    written(values if "model_type" in change else changed, tmp_path)
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    with pytest.raises(CheckpointError, match=message):
        read_unknown(changed, shapes)
