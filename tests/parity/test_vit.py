"""The same classes and vectors as transformers' ViT, for small models in which every tensor is random."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from archetype import spec
from archetype.model import VisionEncoder, skeleton
from tests.weights import distance, randomize

EXACT = 1e-5  # of the largest magnitude, in float32
CLASSES = 7


def config(**changes: Any) -> ViTConfig:
    sizes: dict[str, Any] = {
        "image_size": 12, "patch_size": 4, "num_channels": 3, "hidden_size": 32, "intermediate_size": 44,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": CLASSES,
    }  # fmt: skip
    return ViTConfig(**(sizes | changes))


def encoder_of(theirs: ViTConfig, pooler: bool, head: spec.VisionHead) -> spec.VisionEncoder:
    norm = spec.LayerNorm(eps=theirs.layer_norm_eps)
    biases = spec.ProjectionBiases(q=theirs.qkv_bias, k=theirs.qkv_bias, v=theirs.qkv_bias, o=True)
    block = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=spec.Attention(num_heads=theirs.num_attention_heads, bias=biases),
        feedforward=spec.MLP(d_ff=theirs.intermediate_size, activation=theirs.hidden_act, bias=True),
    )
    return spec.VisionEncoder(
        image_size=theirs.image_size, patch_size=theirs.patch_size, channels=theirs.num_channels,
        d_model=theirs.hidden_size, layers=(block,) * theirs.num_hidden_layers, final_norm=norm, pooler=pooler,
        head=head,
    )  # fmt: skip


NAMES = {
    "vit.": "", "layers.": "blocks.", "encoder.layer.": "blocks.",
    "embeddings.cls_token": "embedding.class_token", "embeddings.position_embeddings": "embedding.position.weight",
    "embeddings.patch_embeddings.projection.": "embedding.patch.",
    "attention.q_proj.": "mixer.q.", "attention.k_proj.": "mixer.k.", "attention.v_proj.": "mixer.v.",
    "attention.o_proj.": "mixer.o.", "mlp.fc1.": "feedforward.up.", "mlp.fc2.": "feedforward.down.",
    "layernorm_before.": "mixer_norm.", "layernorm_after.": "feedforward_norm.", "layernorm.": "final_norm.",
    "pooler.dense.": "pooler.",
}  # fmt: skip


def renamed(name: str) -> str:
    """Our name of a tensor of theirs."""
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def same_as(theirs: nn.Module, encoder: spec.VisionEncoder) -> VisionEncoder:
    """Our model with their tensors; a convolution's kernel is a matrix of the same numbers in the same order."""
    ours = skeleton(encoder).to_empty(device="cpu").eval()
    assert isinstance(ours, VisionEncoder)
    shapes = {name: tensor.shape for name, tensor in ours.state_dict().items()}
    tensors = {renamed(name): tensor for name, tensor in theirs.state_dict().items()}
    ours.load_state_dict({name: tensor.view(shapes[name]) for name, tensor in tensors.items()})
    return ours


def pictures() -> Tensor:
    return torch.randn(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "changes",
    [{}, {"qkv_bias": False}, {"hidden_act": "relu"}, {"layer_norm_eps": 0.1}, {"patch_size": 6}],
    ids=str,
)
@torch.no_grad()
def test_classes(changes: dict[str, Any]) -> None:
    theirs = randomize(ViTForImageClassification(config(**changes)))
    ours = same_as(theirs, encoder_of(theirs.config, False, spec.ClassificationHead(classes=CLASSES)))
    assert distance(ours(pictures()), theirs(pictures()).logits) < EXACT


@torch.no_grad()
def test_vectors_and_the_pooled_one() -> None:
    theirs = randomize(ViTModel(config()))
    ours = same_as(theirs, encoder_of(theirs.config, True, spec.NoHead()))
    found = theirs(pictures())
    assert distance(ours(pictures()), found.last_hidden_state) < EXACT
    assert distance(ours.pooled(ours(pictures())), found.pooler_output) < EXACT
