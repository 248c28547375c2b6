"""A model's parameters as the tensors of a GGUF file: in its names, order of features and types."""

from collections.abc import Iterator

import torch
from torch import Tensor

from archetype import spec
from archetype.convert.apply import export_tensors, shapes_of
from archetype.convert.gguf.architectures import Gguf, frequency_factors
from archetype.families.rules import for_model
from archetype.models import Model

# What llama.cpp wants in float32, whatever the type of the rest.
EXACT = (
    "_norm.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight", "position_embd.weight", "token_types.weight",
    "attn_rel_b.weight",
)  # fmt: skip
POOLER = "cls."


def gguf_tensors(model: Model, target: Gguf) -> dict[str, Tensor]:
    """The tensors of the file, by name."""
    dtype = next(model.parameters()).dtype
    tensors: dict[str, Tensor] = {}
    for name, tensor in _stored(model, target):
        exact = tensor.dim() == 1 or name.endswith(EXACT) or not name.endswith(".weight")
        tensors[name] = tensor.detach().to(torch.float32 if exact else dtype).contiguous()
    factors = frequency_factors(model.spec)
    return tensors if factors is None else tensors | {"rope_freqs.weight": torch.tensor(factors)}


def _stored(model: Model, target: Gguf) -> Iterator[tuple[str, Tensor]]:
    """Each tensor as llama.cpp computes with it."""
    heads = _head_counts(model) if target.paired else {}
    for name, tensor in export_tensors(model, for_model(target.rules, model.spec.num_layers, shapes_of(model))):
        place = name.rpartition(".")[0]
        kind = name.split(".")[2] if name.startswith("blk.") else ""
        if kind in heads:
            yield name, _interleave(tensor, heads[kind])
        elif kind == "attn_kv_b":
            yield from _absorbed(model, place, tensor)
        elif kind == "ssm_a":
            yield name, -tensor.float().exp()
        elif kind == "ssm_conv1d":
            yield name, tensor.squeeze(1) if tensor.dim() == 3 else tensor
        elif target.offset and name.endswith("norm.weight"):
            yield name, tensor.float() + target.offset
        elif name == "dec.output_norm.weight":
            yield name, _scaled_for_head(model, tensor)
        elif not name.startswith(POOLER):
            yield name, tensor


def _head_counts(model: Model) -> dict[str, int]:
    mixer = model.spec.layers[0].mixer  # type: ignore[union-attr]
    sizes = mixer.sizes(model.spec.d_model)  # type: ignore[union-attr]
    return {"attn_q": sizes.num_heads, "attn_k": sizes.num_kv_heads}


def _interleave(tensor: Tensor, heads: int) -> Tensor:
    """Rows in the order in which the features that rotate together are neighbours."""
    pairs: Tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2)
    return pairs.reshape(tensor.shape)


def _absorbed(model: Model, place: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Latents to keys and values, head by head: the first (H, C, P), as queries are taken to latents by it."""
    mixer = model.spec.layers[0].mixer  # type: ignore[union-attr]
    assert isinstance(mixer, spec.LatentAttention)
    whole = tensor.unflatten(0, (mixer.num_heads, -1))
    key, value = whole.split((mixer.qk_nope_head_dim, mixer.v_head_dim), dim=1)
    above = place.rpartition(".")[0]
    yield f"{above}.attn_k_b.weight", key.transpose(1, 2)
    yield f"{above}.attn_v_b.weight", value


def _scaled_for_head(model: Model, norm: Tensor) -> Tensor:
    """A tied head reads shorter vectors, for which llama.cpp has no key: the norm before it makes them so."""
    assert isinstance(model.spec, spec.EncoderDecoder)
    return norm.float() * model.spec.head.scale
