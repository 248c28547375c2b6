"""Tensors whose numbers a GGUF file keeps otherwise than a model: pairs of functions that undo each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archetype.families.keys import expect_kind
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.parts.attention.spec import Attention
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.latent_attention.spec import LatentAttention

if TYPE_CHECKING:
    from torch import Tensor

    Shape = tuple[int, ...]
    Write = Callable[[Tensor, Any, str | None], tuple[Tensor, ...]]
    Read = Callable[[tuple[Tensor, ...], Any], Tensor]


@dataclass(frozen=True)
class Change:
    """How a file keeps the numbers of some tensors.

    Attributes:
        tensors: pattern of their names in the rules.
        write: the tensor, the specification and the type of its blocks, if it is in such -> what the file keeps.
        read: what the file keeps, and the specification -> the tensor.
        parts: what the file calls the pieces, in the place of the rules' last word (absent: one of the same name).
        shapes: the tensor's shape and the specification -> those of what the file keeps (absent: as the tensor's).
    """

    tensors: str
    write: "Write"
    read: "Read"
    parts: tuple[str, ...] | None = None
    shapes: "Callable[[Shape, Any], tuple[Shape, ...]]" = lambda shape, model: (shape,)

    def names(self, name: str) -> list[str]:
        """The file's tensors for one that the rules name."""
        if self.parts is None:
            return [name]
        place, _, kind = name.rpartition(".")
        return [f"{place.rpartition('.')[0]}.{part}.{kind}" for part in self.parts]


def _attention(model: Any) -> Any:
    """The sizes of the first layer's heads."""
    return expect_kind(Attention, model.layers[0].mixer, "layers[0].mixer").sizes(model.d_model)


def _interleaved(tensor: "Tensor", heads: int) -> "Tensor":
    """Rows in the order in which the features that rotate together are neighbours."""
    pairs: Tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2)
    return pairs.reshape(tensor.shape)


def _in_halves(tensor: "Tensor", heads: int) -> "Tensor":
    """Neighbours that rotate together, as the first and the second half of each head."""
    halves: Tensor = tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2)
    return halves.reshape(tensor.shape)


# llama.cpp turns neighbouring features of queries and keys, where the model turns halves.
PAIRED = (
    Change(
        r"blk\.\d+\.attn_q\.(weight|bias)",
        lambda tensor, model, blocks: (_interleaved(tensor, _attention(model).num_heads),),
        lambda stored, model: _in_halves(stored[0], _attention(model).num_heads),
    ),
    Change(
        r"blk\.\d+\.attn_k\.(weight|bias)",
        lambda tensor, model, blocks: (_interleaved(tensor, _attention(model).num_kv_heads),),
        lambda stored, model: _in_halves(stored[0], _attention(model).num_kv_heads),
    ),
)
# The weights of norms are learned around one, and kept as what is multiplied by.
AROUND_ONE = Change(
    r".*norm\.weight",
    lambda tensor, model, blocks: (tensor.float() + 1.0,),
    lambda stored, model: stored[0].float() - 1.0,
)
# A text's vector needs no pooler in llama.cpp, which leaves it out.
NO_POOLER = Change(
    r"cls\..*", lambda tensor, model, blocks: (), lambda stored, model: stored[0], (), lambda shape, model: ()
)


def _rates(logarithms: "Tensor") -> "Tensor":
    return -logarithms.float().exp()


def _logarithms(stored: "tuple[Tensor, ...]", model: Any) -> "Tensor":
    return _nearest(_rates, stored[0].float(), (-stored[0].double()).log().float())


def _nearest(function: "Callable[[Tensor], Tensor]", stored: "Tensor", guess: "Tensor") -> "Tensor":
    """The numbers near a guess that a function takes to what is stored, to the bit where there are such."""
    import torch

    best = guess
    for end in (float("inf"), -float("inf")):
        near = guess
        for _ in range(2):
            near = torch.nextafter(near, torch.full_like(near, end))
            best = torch.where((function(best) != stored) & (function(near) == stored), near, best)
    return best


STATES = (
    Change(r"blk\.\d+\.ssm_a", lambda tensor, model, blocks: (_rates(tensor),), _logarithms),
    Change(
        r"blk\.\d+\.ssm_conv1d\.weight",
        lambda tensor, model, blocks: (tensor.squeeze(1),),
        lambda stored, model: stored[0].unsqueeze(1),
        shapes=lambda shape, model: ((shape[0], shape[2]),),
    ),
)


def _absorbed(tensor: "Tensor", model: Any, blocks: str | None) -> "tuple[Tensor, ...]":
    """Latents to keys and values, head by head: the first (H, C, P), as queries are taken to latents by it.

    Its rows are columns here, which blocks do not follow: it is in float32 where the others are in blocks.
    """
    from archetype.convert.gguf.quantize import dequantize

    mixer = expect_kind(LatentAttention, model.layers[0].mixer, "layers[0].mixer")
    whole = tensor.unflatten(0, (mixer.num_heads, -1))
    key, value = whole.split((mixer.qk_nope_head_dim, mixer.v_head_dim), dim=1)
    key = dequantize(key, blocks) if blocks is not None and not key.is_floating_point() else key
    return key.transpose(1, 2), value


def _joined(stored: "tuple[Tensor, ...]", model: Any) -> "Tensor":
    """Keys and values of each head in turn."""
    import torch

    key, value = stored
    dtype = torch.promote_types(key.dtype, value.dtype)
    return torch.cat((key.transpose(1, 2).to(dtype), value.to(dtype)), dim=1).flatten(0, 1)


def _absorbed_shapes(shape: "Shape", model: Any) -> "tuple[Shape, ...]":
    mixer = expect_kind(LatentAttention, model.layers[0].mixer, "layers[0].mixer")
    heads, latents = mixer.num_heads, shape[1]
    return (heads, latents, mixer.qk_nope_head_dim), (heads, mixer.v_head_dim, latents)


LATENTS = Change(
    r"blk\.\d+\.attn_kv_b\.weight", _absorbed, _joined, ("attn_k_b", "attn_v_b"), shapes=_absorbed_shapes
)


def _head_scale(model: Any) -> float:
    return expect_kind(LanguageModelHead, expect_kind(EncoderDecoder, model, "kind").head, "head").scale


def _unscaled(stored: "tuple[Tensor, ...]", model: Any) -> "Tensor":
    scale = _head_scale(model)
    return _nearest(lambda norm: norm * scale, stored[0].float(), stored[0].float() / scale)


# A tied head reads shorter vectors, for which llama.cpp has no key: the norm before it makes them so.
HEAD_SCALE = Change(
    r"dec\.output_norm\.weight", lambda tensor, model, blocks: (tensor.float() * _head_scale(model),), _unscaled
)
