"""Logits of Gemma 3n: alternating updates, LAuReL, sparse gates, and per-layer inputs of residual streams."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nForCausalLM

import archetype
from archetype import families, spec
from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
from archetype.estimate.report import total_parameters
from tests.helpers.published import EXACT, WRONG, lose, swap
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import SIZES, TOKENS, Tensors, check, read, written

# Layers 4 and 5 read the keys of 2 and 3, and token ids from 57 on have no per-layer vectors.
GEMMA3N: dict[str, Any] = SIZES | {
    "architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text", "num_hidden_layers": 6, "head_dim": 8,
    "intermediate_size": [48, 48, 40, 48, 48, 40], "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-2,
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.3, 0.0], "laurel_rank": 5, "altup_num_inputs": 3,
    "altup_active_idx": 1, "altup_correct_scale": True, "altup_coef_clip": 120.0, "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 57, "final_logit_softcapping": 5.0,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 7, "rope_theta": 500.0,
    "rope_local_base_freq": 50.0, "rope_scaling": None, "tie_word_embeddings": True,
}  # fmt: skip


@torch.no_grad()
def test_gemma3n(tmp_path: Path) -> None:
    """Whole, step by step and written back; exchanged projections of two streams show."""
    mistake = swap("residual_exit.projections.0.weight", "residual_exit.projections.1.weight")
    lm = check(GEMMA3N, mistake, tmp_path)
    residual, first, own = lm.spec.residual, lm.spec.layers[0], lm.spec.layers[1].feedforward
    assert (residual.kind, residual.num_streams, residual.active) == ("altup", 3, 1)
    assert (first.wiring.kind, first.wiring.rank, first.feedforward.activation.share) == ("laurel", 5, 0.9)
    assert (own.num_streams, own.active, own.input_norm.kind) == (3, 1, "affine")
    assert [lm.spec.layers[layer].mixer.keys_from for layer in (6, 8, 10)] == [None, 4, 6]
    assert lm.spec.embedding.per_layer.rows == 57 and lm.spec.layers[4].feedforward.d_ff == 40
    whole = lm.model(TOKENS).logits
    state = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    for lost in ("residual.router", "residual.prediction", "residual.correction", "residual.norm", "mixer_path.right"):
        lose(f"blocks.2.{lost}.weight")(lm.model)
        assert distance(lm.model(TOKENS).logits, whole) > WRONG, lost
        lm.model.load_state_dict(state)
    changes = (
        "residual.active=2",
        "layers[0].feedforward.activation.share=0.8",
        "layers[1].feedforward.active=0",
        "layers[1].feedforward.input_norm=none",
        "layers[0].wiring={kind: sandwich, norm: {kind: rms, eps: 0.01}}",
    )
    for change in changes:
        other = archetype.build(spec.assign(lm.spec, [change])).eval()
        other.load_state_dict(state, strict=False)
        assert distance(other(TOKENS).logits, whole) > WRONG, change


@torch.no_grad()
def test_the_class_derives_layers_and_sparsity(tmp_path: Path) -> None:
    """Of eleven layers every fifth has full attention and the first ten have sparse gates; the scale is not read."""
    derived = ("layer_types", "activation_sparsity_pattern", "rope_theta", "rope_local_base_freq", "rope_scaling")
    values = {key: value for key, value in GEMMA3N.items() if key not in derived}
    values |= {"num_hidden_layers": 11, "intermediate_size": 40, "altup_correct_scale": False, "altup_active_idx": 0}
    theirs = written(values, tmp_path / "theirs")
    lm = read(tmp_path / "theirs")
    layers = lm.spec.layers[::2]
    assert [index for index, layer in enumerate(layers) if layer.mixer.pattern.kind == "full"] == [4, 9]
    assert [layer.feedforward.activation.kind == "gaussian_top_k" for layer in layers] == [True] * 10 + [False]
    assert lm.spec.layers[1].feedforward.input_norm.is_absent
    assert distance(lm.model(TOKENS).logits, theirs(TOKENS, use_cache=False).logits) < EXACT


def as_published(tensors: Tensors) -> Tensors:
    """The text model's tensors within a model of several modalities, with keys that no layer uses."""
    published = {f"model.language_model.{name.removeprefix('model.')}": x for name, x in tensors.items()}
    others = ("vision_tower.timm_model.conv_stem.conv.weight", "audio_tower.conformer.0.norm.weight")
    unused = ("language_model.layers.4.self_attn.k_proj.weight", "language_model.layers.5.self_attn.k_norm.weight")
    further = ("embed_vision.embedding.weight", "embed_audio.hard_embedding_norm.weight")
    return published | {f"model.{name}": torch.ones(16, 32) for name in (*others, *further, *unused)}


@torch.no_grad()
def test_the_text_of_a_model_of_several_modalities(folder: Path, tmp_path: Path) -> None:
    """Its file has the keys of the text in a section, as published."""
    config = {"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"], "text_config": GEMMA3N}
    others = {"audio_config": {"hidden_size": 16}, "vision_config": {"hidden_size": 16}, "image_token_id": 60}
    (tmp_path / "config.json").write_text(json.dumps(config | others))
    save_file(as_published(load_file(folder / "model.safetensors")), tmp_path / "model.safetensors", {"format": "pt"})
    assert distance(read(tmp_path).model(TOKENS).logits, read(folder).model(TOKENS).logits) == 0.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gemma3n")
    written(GEMMA3N, place)
    return place


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"laurel_rank": 4}, "laurel_rank: 4 is not supported"),
        ({"altup_num_inputs": 4}, "altup_num_inputs: 4 is not supported"),
        ({"altup_active_idx": 3}, "altup_active_idx: there are only 3 streams"),
        ({"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern: has no share below 1 for layer 1"),
        ({"activation_sparsity_pattern": [1.0] * 6}, "activation_sparsity_pattern: has no share below 1 for layer 0"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(changes: dict[str, Any], message: str, folder: Path) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
    read_unknown(GEMMA3N, shapes)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_unknown(GEMMA3N | changes, shapes)


@pytest.mark.parametrize(
    ("preset", "sizes", "claim"),
    [
        (
            "gemma3n-e2b",
            {"num_hidden_layers": 30, "intermediate_size": 8192, "num_kv_shared_layers": 10},
            4_435_182_688,
        ),
        ("gemma3n-e4b", {}, 6_835_235_568),
    ],
)
def test_presets_are_what_the_class_builds(preset: str, sizes: dict[str, int], claim: int) -> None:
    """E4B has the sizes that are the defaults of its class."""
    config = Gemma3nTextConfig(**sizes)
    with torch.device("meta"):
        theirs = Gemma3nForCausalLM(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    values = config.to_dict() | {"architectures": ["Gemma3nForCausalLM"]}
    ours = families.preset(preset)
    assert read_unknown(values, shapes).format.spec_from(values) == ours.replace(name="")
    assert total_parameters(ours) == theirs.num_parameters() == claim
