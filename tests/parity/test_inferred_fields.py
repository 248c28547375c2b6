"""Fields of attention and of blocks that files of newer families need, against transformers, every tensor random."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, HYV4Config, Mistral4Config, Mistral4ForCausalLM
from transformers.models.hy_v4.modeling_hy_v4 import HYV4Attention, HYV4RotaryEmbedding

import archetype
from archetype import families, spec
from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
from archetype.estimate.report import total_parameters
from archetype.models.cost import model_cost
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.latent_attention.module import LatentAttention
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose, swap
from tests.helpers.weights import distance, randomize
from tests.helpers.zoo import drawn
from tests.parity.test_inferred_families import PROMPT, SIZES, TOKENS, Tensors, check, read, their_steps, written

LAYERS = ["sliding_attention", "full_attention"] * 2
GEMMA4: dict[str, Any] = SIZES | {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "attention_bias": False,
    "attention_k_eq_v": False, "enable_moe_block": False, "final_logit_softcapping": 30.0, "global_head_dim": 16,
    "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0, "layer_types": LAYERS,
    "num_hidden_layers": 4, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-6, "sliding_window": 12,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    },
    "tie_word_embeddings": True, "use_bidirectional_attention": "vision", "use_double_wide_mlp": False,
    "vocab_size_per_layer_input": 61,
}  # fmt: skip
SHARED = {
    "hidden_size_per_layer_input": 6, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "use_bidirectional_attention": None,
}  # fmt: skip
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
EXPERTS = {"enable_moe_block": True, "moe_intermediate_size": 16, "num_experts": 6, "top_k_experts": 2}
# The spelling in which transformers writes these keys.
BY_LAYER = {"per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}}, "global_head_dim": ...}


def tamed(tensors: Tensors) -> Tensors:
    """Smaller queries: nothing divides the scores, and larger ones would magnify what float32 rounds."""
    return {name: tensor * 0.3 if "q_norm" in name else tensor for name, tensor in tensors.items()}


def with_unused(tensors: Tensors) -> Tensors:
    """The same with keys and values of layers that never compute them, as published files have them."""
    more = {f"model.layers.3.self_attn.{name}": torch.randn(32, 32) for name in ("k_proj.weight", "v_proj.weight")}
    return tamed(tensors) | more | {"model.layers.2.self_attn.k_norm.weight": torch.randn(8)}


def gemma4(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (GEMMA4 | changes).items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "publish"),
    [(SHARED, with_unused), (KEYS_AS_VALUES, tamed), (SHARED | BY_LAYER, tamed)],
    ids=["shared keys", "keys as values", "keys by layer"],
)
def test_gemma_4(changes: dict[str, Any], publish: Any, tmp_path: Path) -> None:
    """Whole, step by step and written back; the scale of a layer in the wrong place shows."""
    lm = check(gemma4(**changes), swap("blocks.1.output_scale", "blocks.3.output_scale"), tmp_path, publish)
    layers, each = lm.spec.layers, 2 if "num_kv_shared_layers" in changes else 1
    attention = [block.mixer for block in layers[::each]]
    assert [mixer.sizes(32).head_dim for mixer in attention] == [8, 16, 8, 16]
    assert {mixer.scale for mixer in attention} == {1.0}
    assert [block.output_scale for block in layers] == [False, True] * 4 if each == 2 else [True] * 4
    assert attention[1].position.scaling.kind == "proportional"
    if each == 2:
        assert [mixer.keys_from for mixer in attention] == [None, None, 0, 2]
        assert [block.feedforward.d_ff for block in layers[::2]] == [48, 48, 96, 96]
    else:
        assert [mixer.keys_as_values for mixer in attention] == [False, True] * 2
        assert [mixer.sizes(32).num_kv_heads for mixer in attention] == [2, 1, 2, 1]


def test_gemma_4_has_experts_beside_its_network(tmp_path: Path) -> None:
    """Each norm is in its place, and the router reads the stream through its own."""
    below = "blocks.2.feedforward"
    mistake = swap(f"{below}.norms.0.weight", f"{below}.parts.1.norm.weight")
    lm = check(gemma4(**KEYS_AS_VALUES, **EXPERTS), mistake, tmp_path, tamed)
    assert lm.spec.layers[0].wiring.norm_of("feedforward").is_absent
    assert [part.kind for part in lm.spec.layers[0].feedforward.parts] == ["gated", "experts"]
    with torch.no_grad():
        whole = lm.model(TOKENS).logits
        for one, two in (
            ("post_norms.0.weight", "post_norms.1.weight"),
            ("parts.1.router.norm.weight", "parts.1.norm.weight"),
        ):
            exchange = swap(f"{below}.{one}", f"{below}.{two}")
            exchange(lm.model)
            assert distance(lm.model(TOKENS).logits, whole) > WRONG
            exchange(lm.model)
        lose(f"{below}.parts.1.expert_scales")(lm.model)
        assert distance(lm.model(TOKENS).logits, whole) > WRONG


@pytest.mark.parametrize(
    ("preset", "file", "claim"),
    [
        ("gemma4-e2b", "google__gemma-4-E2B-it.json", 4_628_569_379),
        ("gemma4-26b-a4b", "google__gemma-4-26B-A4B.json", 25_233_141_790),
        ("gemma4-31b", "nvidia__Gemma-4-31B-IT-NVFP4.json", 30_697_345_340),
    ],
)
def test_a_preset_of_gemma_4_is_what_its_configuration_says(preset: str, file: str, claim: int, shared: Path) -> None:
    values = json.loads((shared / "published" / "configs" / file).read_text())["text_config"]
    config = Gemma4TextConfig(**values)
    with torch.device("meta"):
        theirs = Gemma4ForCausalLM(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    inferred = read_unknown(values, shapes).format.spec_from(values)
    ours = families.preset(preset)
    assert inferred == ours.replace(name="")
    # a factor for each layer, which transformers keeps as a buffer
    assert total_parameters(ours) == theirs.num_parameters() + config.num_hidden_layers == claim


def test_layers_that_share_keys_hold_no_state(tmp_path: Path) -> None:
    written(gemma4(**SHARED), tmp_path / "model", tamed)
    lm = read(tmp_path / "model")
    states = lm.model.new_state(1, 40).layers
    sizes = [sum(x.numel() for _, x in state._values() if isinstance(x, torch.Tensor)) for state in states]
    assert sizes == [2 * 2 * 12 * 8, 0, 2 * 2 * 40 * 16, 0, 0, 0, 0, 0]  # a window's, and the full layer's
    assert model_cost(lm.spec).state(40)[0] == sum(sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "attention to later tokens"),
        ({"layer_types": None}, "layer_types: is missing"),
        ({"global_head_dim": 8}, "attention with 8 heads of 8 features and keys for 4"),
        (KEYS_AS_VALUES, "value projections in a layer that uses its keys as values"),
        ({"num_kv_shared_layers": 3}, "leaves layer 1 no keys to read"),
        ({"per_layer_config": {"1": {"head_dim": 16, "sliding_window": 3}}}, "per-layer values of other keys"),
        ({"per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 1}, "3": {"head_dim": 16}}}, "says 1"),
    ],
)
def test_what_keys_and_tensors_of_gemma_4_contradict_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, gemma_tensors: Tensors
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA4 | changes))
    save_file(gemma_tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        archetype.load(tmp_path)


@pytest.fixture(scope="module")
def gemma_tensors(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    folder = tmp_path_factory.mktemp("gemma4")
    written(GEMMA4, folder)
    return load_file(folder / "model.safetensors")


MIMO: dict[str, Any] = SIZES | {
    "architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash", "attention_bias": False,
    "attention_value_scale": 0.707, "head_dim": 12, "hidden_act": "silu", "layernorm_epsilon": 1e-5,
    "moe_intermediate_size": 16, "n_group": 1, "n_routed_experts": 6, "norm_topk_prob": True, "num_experts_per_tok": 2,
    "num_hidden_layers": 6, "num_key_value_heads": 1, "routed_scaling_factor": None, "scoring_func": "sigmoid",
    "sliding_window": 8, "sliding_window_size": 8, "tie_word_embeddings": False, "topk_group": 1, "v_head_dim": 5,
}  # fmt: skip
NAMED = {
    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "num_hidden_layers": 3,
    "attention_value_scale": None, "attention_bias": True, "sliding_window_size": ...,
    "rope_parameters": {
        "full_attention": {"rope_theta": 77.0, "rope_type": "default", "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_theta": 33.0, "rope_type": "default"},
    },
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, NAMED], ids=["as published", "named"])
def test_mimo_v2_flash(changes: dict[str, Any], tmp_path: Path) -> None:
    """Values narrower than keys and scaled, and sinks in layers with windows, which have twice as many key heads."""
    values = {key: value for key, value in (MIMO | changes).items() if value is not ...}
    lm = check(values, lose("blocks.1.mixer.sinks"), tmp_path, as_published_mimo)
    full, windowed = (lm.spec.layers[number].mixer for number in (0, 1))
    assert (full.sinks, windowed.sinks) == (False, True)
    assert (full.num_kv_heads, windowed.num_kv_heads) == (1, 2)
    assert {mixer.v_head_dim for mixer in (full, windowed)} == {5}
    assert windowed.pattern.size == (8 if changes else 9)  # published windows are about the positions before
    assert full.value_scale == (1.0 if changes else 0.707)
    assert (full.position.dim, windowed.position.dim) == ((6, 4) if changes else (4, 4))
    states = lm.model.new_state(1, 40).layers
    assert model_cost(lm.spec).state(40)[0] == sum(state.keys.numel() + state.values.numel() for state in states)


def as_published_mimo(tensors: Tensors) -> Tensors:
    return {name.replace(".sinks", ".attention_sink_bias"): tensor for name, tensor in tensors.items()}


MISTRAL4: dict[str, Any] = SIZES | {
    "first_k_dense_replace": 1, "kv_lora_rank": 10, "moe_intermediate_size": 16, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 12,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "v_head_dim": 6,
    "rope_parameters": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
        "max_position_embeddings": 128, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16,
        "rope_theta": 100.0, "rope_type": "yarn",
    },
}  # fmt: skip


@pytest.mark.parametrize("interleaved", [True, False])
@torch.no_grad()
def test_mistral_4(interleaved: bool, tmp_path: Path) -> None:
    """Latent attention with queries that grow with their position; no auto class of transformers makes this model."""
    drawn(Mistral4ForCausalLM(Mistral4Config(**MISTRAL4, rope_interleave=interleaved))).save_pretrained(tmp_path)
    theirs = Mistral4ForCausalLM.from_pretrained(tmp_path).eval()
    lm = read(tmp_path)
    mixer = lm.spec.layers[0].mixer
    assert (mixer.query_scale.beta, mixer.query_scale.length, mixer.position.interleaved) == (0.1, 16, interleaved)
    whole = theirs(TOKENS).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    ours = in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts)
    assert distance(ours, their_steps(theirs, TOKENS)) < EXACT
    for block in lm.model.blocks:
        block.mixer.spec = block.mixer.spec.replace(query_scale=None)
    assert distance(lm.model(TOKENS).logits, whole) > WRONG


def test_a_head_of_another_width_in_mistral_4_is_refused(tmp_path: Path) -> None:
    drawn(Mistral4ForCausalLM(Mistral4Config(**MISTRAL4))).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"head_dim": 8}))  # of which a third would rotate
    with pytest.raises(CheckpointError, match=r"latent attention with 4 rotated features .head_dim: 8"):
        read(tmp_path)


@torch.no_grad()
def test_latent_attention_of_hy_v4() -> None:
    """With sinks and a gate for each feature, within a text that its index sees whole."""
    sizes = {key: value for key, value in MISTRAL4.items() if key not in ("rope_parameters", "first_k_dense_replace")}
    rope = {"rope_theta": 100.0, "rope_type": "default"}
    config = HYV4Config(**sizes, rope_parameters=rope, index_topk=64, indexer_types=["full"] * 3)
    config._attn_implementation = "eager"
    theirs, tokens = randomize(HYV4Attention(config, 0)), 21
    x = torch.randn(2, tokens, 32, generator=torch.Generator().manual_seed(0))
    mixer = spec.LatentAttention(
        num_heads=4, query=spec.LowRankQuery(rank=12), kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=4,
        v_head_dim=6, position=spec.Rotary(theta=100.0), sinks=True, gate=spec.OutputGate(),
    )  # fmt: skip
    ours = LatentAttention(mixer, Place(32)).eval()
    names = {
        "q_a_proj": "q_down", "q_a_layernorm": "q_norm", "q_b_proj": "q_up", "kv_a_proj_with_mqa": "kv_down",
        "kv_a_layernorm": "kv_norm", "kv_b_proj": "kv_up", "o_proj": "o", "gate_proj": "gate", "sinks": "sinks",
    }  # fmt: skip
    named = {name: (name.partition(".")[0], tensor) for name, tensor in theirs.state_dict().items()}
    ours.load_state_dict({
        name.replace(start, names[start], 1): tensor
        for name, (start, tensor) in named.items() if start in names
    })  # fmt: skip
    positions = torch.arange(tokens)[None]
    mask = torch.full((tokens, tokens), -1e30).triu(1)[None, None].expand(2, -1, -1, -1)
    turned = HYV4RotaryEmbedding(config)(x, positions)
    expected = theirs(x, turned, mask, position_ids=positions)[0]
    assert distance(ours(x, ForwardContext.of(x)), expected) < EXACT
    ours.sinks.zero_()
    assert distance(ours(x, ForwardContext.of(x)), expected) > WRONG
