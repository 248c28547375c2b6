"""Conversions of the tensors of latent attention, whose sizes may differ between layers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from archetype.convert.gguf.changes import Change, ChangeOfLayers, in_float
from archetype.families.keys import expect_kind
from archetype.parts.latent_attention.spec import LatentAttention

if TYPE_CHECKING:
    from torch import Tensor

    from archetype.convert.gguf.changes import Shape


def _mixer(model: Any, layer: int) -> LatentAttention:
    return expect_kind(LatentAttention, model.layers[layer].mixer, f"layers[{layer}].mixer")


def _first(model: Any) -> LatentAttention:
    return next(block.mixer for block in model.layers if isinstance(block.mixer, LatentAttention))


def _absorbed(layer: int) -> Change:
    # llama.cpp absorbs the key matrix into the queries, q (Wuk c) = (Wuk^T q) c: it needs Wuk transposed, and Wuv apart
    def shapes(shape: "Shape", model: Any) -> "tuple[Shape, ...]":
        mixer, rank = _mixer(model, layer), shape[1]
        return (mixer.num_heads, rank, mixer.qk_nope_head_dim), (mixer.num_heads, mixer.v_head_dim, rank)

    def write(tensor: "Tensor", model: Any, blocks: str | None) -> "tuple[Tensor, ...]":
        mixer = _mixer(model, layer)
        by_head = tensor.unflatten(0, (mixer.num_heads, -1))  # (H, P + V, C)
        key, value = by_head.split((mixer.qk_nope_head_dim, mixer.v_head_dim), dim=1)
        # a transposition would cut across quantized blocks
        return in_float(key, blocks).transpose(1, 2), value

    def read(stored: "tuple[Tensor, ...]", model: Any) -> "Tensor":
        import torch

        key, value = stored  # (H, C, P) and (H, V, C)
        if (tuple(key.shape), tuple(value.shape)) != shapes((0, key.shape[1]), model):
            raise ValueError("not the sizes of the layer's heads")
        dtype = torch.promote_types(key.dtype, value.dtype)
        return torch.cat((key.transpose(1, 2).to(dtype), value.to(dtype)), dim=1).flatten(0, 1)

    return Change("", write, read, ("attn_k_b", "attn_v_b"), shapes)


LATENTS = ChangeOfLayers(r"blk\.\d+\.attn_kv_b\.weight", _absorbed)


def _scaled(latent: str, scale: Callable[[LatentAttention], float]) -> ChangeOfLayers:
    def of(layer: int) -> Change:
        return Change(
            "",
            lambda tensor, model, blocks: (tensor.float() * scale(_mixer(model, layer)),),
            lambda stored, model: stored[0],
        )

    return ChangeOfLayers(rf"blk\.\d+\.attn_{latent}_a_norm\.weight", of)


# Factors on latents are multiplied into the norms before them, so that a model that is read has none.
SCALES = _scaled("q", lambda mixer: mixer.query.scale), _scaled("kv", lambda mixer: mixer.latent_scale)


def _reordered(tensors: str, sizes: Callable[[Any], tuple[int, int, Any]], to_pairs: bool) -> Change:
    # (groups of rows, rows of each that rotate, position): the last rows from halves to pairs, where the model rotates
    # halves, or the first ones from pairs to halves
    def write(tensor: "Tensor", model: Any, blocks: str | None) -> "tuple[Tensor, ...]":
        groups, rotated, position = sizes(model)
        if position.interleaved == to_pairs:
            return (tensor,)
        rows, turned = tensor.unflatten(0, (groups, -1)).clone(), slice(-rotated, None) if to_pairs else slice(rotated)
        rows[:, turned] = rows[:, turned].unflatten(1, (2, -1) if to_pairs else (-1, 2)).transpose(1, 2).flatten(1, 2)
        return (rows.flatten(0, 1),)

    return Change(rf"blk\.\d+\.{tensors}", write, lambda stored, model: stored[0])


def _index(model: Any) -> Any:
    return next(block.mixer.index for block in model.layers if getattr(block.mixer, "index", None) is not None)


def _rotation(model: Any) -> tuple[int, Any]:
    return _index(model).position.dim or _index(model).head_dim, _index(model).position


def _of_index(to_pairs: bool) -> tuple[Change, Change]:
    return (
        _reordered(r"indexer\.attn_q_b\.weight", lambda m: (_index(m).num_heads, *_rotation(m)), to_pairs),
        _reordered(r"indexer\.(attn_k|k_norm)\.(weight|bias)", lambda m: (1, *_rotation(m)), to_pairs),
    )


# Hy4, whose features llama.cpp rotates in pairs, and transformers' class in halves. A model that is read rotates pairs.
LAST_IN_PAIRS = (
    _reordered(
        r"attn_q_b\.weight", lambda m: (_first(m).num_heads, _first(m).qk_rope_head_dim, _first(m).position), True
    ),
    _reordered(r"attn_kv_a_mqa\.weight", lambda m: (1, _first(m).qk_rope_head_dim, _first(m).position), True),
    *_of_index(True),
)
# dots 3, whose index llama.cpp rotates in halves, and transformers' class in pairs
INDEX_IN_HALVES = _of_index(False)
