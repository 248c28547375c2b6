"""LLaDA and Dream, as published, agree with transformers' Llama and Qwen2 if their mask hides no token."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

import archetype
from archetype.errors import CheckpointError
from tests.helpers.published import EXACT, WRONG, same_tensors
from tests.helpers.published_configs import DREAM_7B, LLADA_8B
from tests.helpers.weights import distance

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
KV_HEADS = 2
LLADA = LLADA_8B | {
    "d_model": 32, "n_heads": 4, "n_kv_heads": KV_HEADS, "n_layers": 2, "mlp_hidden_size": 48, "vocab_size": 61,
    "embedding_size": 61, "max_sequence_length": 64,
}  # fmt: skip
DREAM = DREAM_7B | SIZES | {"num_key_value_heads": KV_HEADS, "max_position_embeddings": 64}
NAMES = {  # of LLaDA, and of Llama
    "model.layers": "model.transformer.blocks", "self_attn.o_proj": "attn_out", "self_attn.": "",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm", "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj", "mlp.down_proj": "ff_out", "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f", "lm_head": "model.transformer.ff_out",
}  # fmt: skip
TOKENS = torch.stack((torch.arange(4, 24), torch.arange(24, 4, -1)))


def reference(config: dict[str, Any]) -> Any:
    """The model of transformers with the same layers, with every tensor random."""
    theta, eps = config["rope_theta"], config["rms_norm_eps"]
    common: dict[str, Any] = dict(
        **SIZES, num_key_value_heads=KV_HEADS, rms_norm_eps=eps, max_position_embeddings=64, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": theta}, attn_implementation="eager",
    )  # fmt: skip
    if config is LLADA:
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**common))
    else:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model.eval()


def published(folder: Path, config: dict[str, Any], model: Any, **changes: Any) -> Path:
    """A folder with the published names."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | changes))
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        for theirs, ours in NAMES.items() if config is LLADA else ():
            name = name.replace(theirs, ours)
        tensors[name] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_published_diffusion_models_agree_and_are_written_back(tmp_path: Path, config: dict[str, Any]) -> None:
    model = reference(config)
    folder = published(tmp_path / "published", config, model)
    with torch.no_grad():
        hides_nothing = torch.zeros(1, 1, TOKENS.shape[1], TOKENS.shape[1])
        expected = model(TOKENS, attention_mask=hides_nothing).logits
        causal = model(TOKENS).logits
    if config is DREAM:  # Dream reads the logits of a token from the vector before it
        expected, causal = (torch.cat((x[:, :1], x[:, :-1]), dim=1) for x in (expected, causal))
    lm = archetype.TextEncoder.load(folder)
    with torch.no_grad():
        logits = lm.model(TOKENS).logits
    assert distance(logits, expected) < EXACT
    assert distance(logits, causal) > WRONG  # control: with the decoder's mask
    archetype.export(lm, tmp_path / "written")
    same_tensors(folder, tmp_path / "written")
    assert archetype.load(tmp_path / "written").spec == lm.spec


@pytest.mark.parametrize(
    ("config", "changes"),
    [(LLADA, {"block_type": "sequential"}), (LLADA, {"embedding_size": 64}), (DREAM, {"use_sliding_window": True})],
)
def test_another_design_is_refused_by_its_key(tmp_path: Path, config: dict[str, Any], changes: dict[str, Any]) -> None:
    folder = published(tmp_path / "published", config, reference(config), **changes)
    with pytest.raises(CheckpointError, match=rf"{next(iter(changes))}: .*; "):
        archetype.load(folder)
