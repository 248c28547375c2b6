"""GTE as Alibaba publishes it, beside a plain program of its description, and transformers' reader of its tensors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

import archetype
from archetype.errors import CheckpointError
from archetype.estimate.report import total_parameters
from tests.helpers.published import EXACT, WRONG, same_tensors
from tests.helpers.weights import distance

D, HEADS, WIDTH, LAYERS, VOCABULARY = 32, 4, 48, 2, 61
CONFIG: dict[str, Any] = {
    "architectures": ["NewModel"], "model_type": "new", "hidden_size": D, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "intermediate_size": WIDTH, "vocab_size": VOCABULARY, "type_vocab_size": 2,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False, "pack_qkv": True,
    "max_position_embeddings": 64, "position_embedding_type": "rope", "rope_theta": 500, "pad_token_id": 0,
    "rope_scaling": {"factor": 2.0, "type": "ntk"}, "unpad_inputs": False, "use_memory_efficient_attention": False,
    "classifier_dropout": None, "initializer_range": 0.02, "transformers_version": "4.39.1", "torch_dtype": "float32",
}  # fmt: skip
ROWS, COUNTS = torch.stack((torch.arange(4, 24), torch.arange(24, 4, -1))), torch.tensor([20, 13])
IS_TOKEN = torch.arange(20) < COUNTS[:, None]


def tensors() -> dict[str, Tensor]:
    """Random tensors under the published names."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, D), "embeddings.token_type_embeddings.weight": (2, D),
    }  # fmt: skip
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{index}" for index in range(LAYERS)):
        norms += [f"{layer}.attn_ln", f"{layer}.mlp_ln"]
        for name, sizes in (("qkv_proj", (3 * D, D)), ("o_proj", (D, D))):
            shapes |= {f"{layer}.attention.{name}.weight": sizes, f"{layer}.attention.{name}.bias": sizes[:1]}
        shapes |= {f"{layer}.mlp.up_gate_proj.weight": (2 * WIDTH, D), f"{layer}.mlp.down_proj.weight": (D, WIDTH)}
        shapes[f"{layer}.mlp.down_proj.bias"] = (D,)
    shapes |= {f"{norm}.{name}": (D,) for norm in norms for name in ("weight", "bias")}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}


def described(weights: dict[str, Tensor], theta: float, factor: float) -> Tensor:
    """The vectors by the description of the model, one step after another."""

    def linear(x: Tensor, name: str) -> Tensor:
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, (D,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    width = D // HEADS
    frequencies: Tensor = (theta * factor) ** -(torch.arange(0, width, 2) / width) / factor ** (2 / width)
    angles = (torch.arange(20)[:, None] * frequencies).repeat(1, 2)

    def turned(x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-other, one), -1) * angles.sin()

    x = weights["embeddings.word_embeddings.weight"][ROWS] + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{index}" for index in range(LAYERS)):
        parts = linear(x, f"{layer}.attention.qkv_proj").chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, width)).transpose(1, 2) for part in parts)
        scores = turned(q) @ turned(k).mT / width**0.5
        shares = scores.masked_fill(~IS_TOKEN[:, None, None], -torch.inf).softmax(-1)
        x = norm(x + linear((shares @ v).transpose(1, 2).flatten(2), f"{layer}.attention.o_proj"), f"{layer}.attn_ln")
        up, gate = linear(x, f"{layer}.mlp.up_gate_proj").chunk(2, -1)
        x = norm(x + linear(gelu(gate) * up, f"{layer}.mlp.down_proj"), f"{layer}.mlp_ln")
    return x[IS_TOKEN]


def write(folder: Path, changes: dict[str, Any], prefix: str = "", further: dict[str, Tensor] | None = None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    named = {f"{prefix}{name}": tensor for name, tensor in tensors().items()} | (further or {})
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0])
def test_the_vectors_are_those_of_its_description(factor: float, tmp_path: Path) -> None:
    changes = {"rope_scaling": {"factor": factor, "type": "ntk"} if factor > 1 else None}
    lm = archetype.load(write(tmp_path / "theirs", changes))
    expected = described(tensors(), 500, factor)
    with torch.no_grad():
        assert distance(lm.model(ROWS, num_tokens=COUNTS).hidden[IS_TOKEN], expected) < EXACT
        assert distance(described(tensors(), 500 * factor, 1.0), expected) > WRONG or factor == 1
    archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path / "theirs", tmp_path / "written")
    written = json.loads((tmp_path / "written/config.json").read_text())
    same = (*changes, "architectures", "rope_theta", "position_embedding_type", "pack_qkv", "type_vocab_size")
    assert {key: written[key] for key in same} == {key: (CONFIG | changes)[key] for key in same}
    assert sum(p.numel() for p in lm.model.parameters()) == total_parameters(lm.spec)
    # transformers' reader of the same tensors, whose positions are scaled by a word of its own
    theta, scale = 500 * factor, factor ** (2 / (D // HEADS))
    rope = {"rope_type": "linear", "factor": scale, "rope_theta": theta}
    other = {"model_type": "gte", "architectures": ["GteModel"], "rope_parameters": rope, "rope_scaling": None}
    theirs = transformers.AutoModel.from_pretrained(write(tmp_path / "gte", other)).eval()
    with torch.no_grad():
        output = theirs(input_ids=ROWS * IS_TOKEN, attention_mask=IS_TOKEN.long()).last_hidden_state[IS_TOKEN]
    assert distance(output, expected) < EXACT


def test_with_a_head_names_have_their_prefix(tmp_path: Path) -> None:
    """As gte-multilingual-base is published, with a head that nobody needs."""
    changes = {"architectures": ["NewForTokenClassification"], "id2label": {"0": "LABEL_0"}}
    head = {"classifier.weight": torch.randn(1, D), "classifier.bias": torch.randn(1)}
    lm = archetype.load(write(tmp_path / "theirs", changes, "new.", head))
    with torch.no_grad():
        assert distance(lm.model(ROWS, num_tokens=COUNTS).hidden[IS_TOKEN], described(tensors(), 500, 2.0)) < EXACT
    archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path / "theirs", tmp_path / "written")


@pytest.mark.parametrize("key", ["pack_qkv", "logn_attention_scale", "layer_norm_type", "position_embedding_type"])
def test_another_design_is_refused_by_its_key(key: str, tmp_path: Path) -> None:
    value = not CONFIG[key] if isinstance(CONFIG[key], bool) else "rms_norm"
    with pytest.raises(CheckpointError, match=f"config.json: {key}: {value!r} is not supported"):
        archetype.load(write(tmp_path / "theirs", {key: value}))
