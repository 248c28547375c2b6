"""Layers whose tensors are named, numbered or stacked as in no other type, read by their files, every tensor random."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archetype
from archetype.convert.infer import read_unknown
from archetype.convert.infer.checkpoint_info import Shapes
from archetype.errors import CheckpointError
from archetype.models.build import build
from archetype.roles.residual import ResidualSum
from tests.helpers.examples import every
from tests.helpers.published import EXACT, WRONG, same_tensors, swap
from tests.helpers.weights import distance
from tests.helpers.zoo import TEXT, write_small
from tests.parity.test_inferred_families import SIZES, TOKENS, check, read, written

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


FALCON: dict[str, Any] = SIZES | {
    "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "head_dim": 8, "hidden_act": "silu",
    "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 6, "mamba_n_groups": 2,
    "mamba_d_conv": 3, "mamba_chunk_size": 8, "mamba_rms_norm": True, "mamba_norm_before_gate": True,
    "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000.0, "tie_word_embeddings": False,
    "embedding_multiplier": 1.7, "lm_head_multiplier": 0.6, "key_multiplier": 0.8, "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 1.3, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.7,
    "mlp_multipliers": [0.75, 1.4], "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
}  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "changes"),
    every(
        2,
        (
            pytest.param(*one)
            for one in [
                ("before_gate", {}),
                ("after_gate", {"mamba_norm_before_gate": False}),
                ("none", {"mamba_rms_norm": False, "ssm_multipliers": None, "mlp_multipliers": None}),
            ]
        ),
    ),
)
def test_falcon_h1_has_attention_beside_a_state_space(norm: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """With each of its multipliers; `test_blocks.py` has the controls, each of them lost."""
    mistake = swap("blocks.1.mixer.parts.0.k.weight", "blocks.1.mixer.parts.0.v.weight")
    lm = check(FALCON | changes, mistake, tmp_path)
    attention, state_space = lm.spec.layers[0].mixer.parts
    assert (attention.kind, state_space.kind, state_space.norm) == ("attention", "mamba2", norm)
    assert (state_space.in_scales is None) == (norm == "none") == (lm.spec.layers[0].feedforward.kind == "gated")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers: is not a list of five factors"),
        ({"mlp_multipliers": [0.0, 2.0]}, "mlp_multipliers: is not a pair of factors"),
        ({"mlp_multipliers": [0.5, 2.0], "hidden_act": "gelu"}, "'gelu' after a convolution is not supported"),
        ({"mamba_rms_norm": False}, "a gated norm although"),
    ],
)
def test_what_falcon_h1_cannot_say_is_refused(change: dict[str, Any], message: str, falcon_shapes: Shapes) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_unknown(FALCON | change, falcon_shapes)


@pytest.fixture(scope="module")
def falcon_shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    folder = tmp_path_factory.mktemp("falcon")
    written(FALCON, folder)
    return {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}


XLM: dict[str, Any] = {
    "architectures": ["XLMWithLMHeadModel"], "model_type": "xlm", "asm": False, "causal": True, "emb_dim": 32,
    "gelu_activation": True, "layer_norm_eps": 1e-3, "max_position_embeddings": 128, "n_heads": 4, "n_langs": 1,
    "n_layers": 2, "vocab_size": 61, "pad_token_id": 0, "pad_index": 0, "tie_word_embeddings": True,
}  # fmt: skip


def test_xlm_numbers_each_kind_of_part(tmp_path: Path) -> None:
    """Its class reads no text from a cache, which our steps are therefore compared without."""
    check(XLM, swap("blocks.0.mixer.q.weight", "blocks.1.mixer.q.weight"), tmp_path, their_cache=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"causal": False}, "causal: needs attention to later tokens"),
        ({"causal": ...}, "causal: needs attention to later tokens"),  # the default of the class
        ({"asm": True}, "asm: True is not supported"),
        ({}, r"transformer\.lang_embeddings\.weight: needs language embeddings"),
    ],
)
def test_what_xlm_cannot_say_is_refused(change: dict[str, Any], message: str) -> None:
    values = {key: value for key, value in (XLM | change).items() if value is not ...}
    shapes = {f"transformer.{name}embeddings.weight": (61, 32) for name in ("", "lang_")}
    shapes["transformer.ffns.0.lin1.weight"] = (128, 32)
    with pytest.raises(CheckpointError, match=message):
        read_unknown(values, shapes)


def test_phi4_multimodal_is_read_without_what_is_for_images_and_speech(tmp_path: Path) -> None:
    """Adapters for other input are left out, and said; any other adapter is refused."""
    theirs = write_small("phi4_multimodal", tmp_path)
    file, place = tmp_path / "model.safetensors", "model.layers.0.self_attn.o_proj.lora"
    adapters = {f"{place}_{side}.{kind}.weight": torch.ones(1) for side in "AB" for kind in ("vision", "speech")}
    save_file(load_file(file) | adapters, file, {"format": "pt"})
    lm = read(tmp_path)
    assert lm.family is not None and lm.family.reading is not None
    left_out = lm.family.reading.left_out
    assert adapters.keys() <= set(left_out) and any("audio_embed" in name for name in left_out)
    with torch.no_grad():
        assert distance(lm.model(TEXT).logits, theirs) < EXACT
        swap("blocks.0.mixer.k.weight", "blocks.0.mixer.v.weight")(lm.model)
        assert distance(lm.model(TEXT).logits, theirs) > WRONG
    save_file(load_file(file) | {f"{place}_A.text.weight": torch.ones(1, 32)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lora_A\.text\.weight: belongs to an unknown part"):
        read(tmp_path)


def test_mllama_reads_texts_without_its_layers_of_images(tmp_path: Path) -> None:
    """The table has rows for ids that are never predicted, and the second of three layers only reads images."""
    theirs, file = write_small("mllama", tmp_path), tmp_path / "model.safetensors"
    lm = read(tmp_path)
    assert lm.spec.num_layers == 2 and lm.spec.embedding.extra_rows == 8
    assert lm.model.embedding.token.weight.shape == (69, 32)
    assert lm.family is not None and lm.family.reading is not None
    assert {name.partition("layers.")[2][:2] for name in lm.family.reading.left_out} == {"1."}
    with torch.no_grad():
        assert distance(lm.model(TEXT).logits, theirs) < EXACT
        swap("blocks.0.mixer.k.weight", "blocks.1.mixer.k.weight")(lm.model)
        assert distance(lm.model(TEXT).logits, theirs) > WRONG
    archetype.export(read(tmp_path), tmp_path / "written")
    same_tensors(tmp_path, tmp_path / "written")
    tensors = {name: tensor for name, tensor in load_file(file).items() if "cross_attn_attn_gate" not in name}
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.1\."):
        read(tmp_path)


MOSHI: dict[str, Any] = SIZES | {
    "architectures": ["MoshiForCausalLM"], "model_type": "moshi", "ffn_dim": 96, "hidden_act": "silu",
    "max_position_embeddings": 128, "rms_norm_eps": 1e-8, "rope_theta": 500.0, "sliding_window": 128,
    "tie_word_embeddings": False,
}  # fmt: skip


def test_moshi_reads_texts(tmp_path: Path) -> None:
    """Its table has one row more than the head predicts; a window that only a cache has is refused."""
    values = {key: value for key, value in MOSHI.items() if key != "intermediate_size"}
    lm = check(values, swap("blocks.0.feedforward.gate.weight", "blocks.0.feedforward.up.weight"), tmp_path)
    assert lm.spec.embedding.extra_rows == 1
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(values | {"sliding_window": 8}))
    with pytest.raises(CheckpointError, match="sliding_window: 8 keys are seen with a cache, and all 128 without one"):
        read(tmp_path / "theirs")


BEAM: dict[str, Any] = SIZES | {
    "architectures": ["BeamForCausalLM"], "model_type": "beam", "final_logit_softcapping": 30.0, "head_dim": 8,
    "hidden_act": "silu", "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"], "moe_intermediate_size": 16, "n_group": 2, "norm_topk_prob": True,
    "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 3, "rms_norm_eps": 0.5,
    "rope_parameters": {
        "full_attention": None, "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"},
    },
    "routed_scaling_factor": 2.5, "sliding_window": 8, "tie_word_embeddings": False, "topk_group": 1,
}  # fmt: skip


def test_beam(tmp_path: Path) -> None:
    """Gates with a number of each head, a sum of terms of one size, and queries that grow where nothing rotates.

    Norms undo the size of a sum but for their epsilon, which is large here.
    """
    lm = check(BEAM, swap("blocks.0.mixer.gate_bias", "blocks.1.mixer.gate_bias"), tmp_path)
    mixers = [block.mixer for block in lm.spec.layers]
    assert [mixer.position.kind for mixer in mixers] == ["rotary", "none", "rotary"]
    assert [mixer.query_scale and mixer.query_scale.form for mixer in mixers] == [None, "power", None]
    assert lm.spec.residual.kind == "scaled_sum" and {mixer.gate.bias for mixer in mixers} == {True}
    changed = lm.spec.replace(residual=ResidualSum())
    other = build(changed).eval()
    other.load_state_dict(lm.model.state_dict())
    with torch.no_grad():
        assert distance(other(TOKENS).logits, lm.model(TOKENS).logits) > WRONG


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cpmant", r"cpmant\..*: needs bidirectional attention within a prompt, after learned"),
    ],
)
def test_what_is_not_read_is_named(kind: str, message: str, tmp_path: Path) -> None:
    write_small(kind, tmp_path)
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)
