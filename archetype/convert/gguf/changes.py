"""Conversions of tensors that GGUF files store differently, as pairs of inverse functions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from archetype.families.keys import expect_kind
from archetype.families.standard_block import first_attention
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.together.spec import FeedForwardsTogether

if TYPE_CHECKING:
    from torch import Tensor

    Shape = tuple[int, ...]
    Write = Callable[[Tensor, Any, str | None], tuple[Tensor, ...]]
    Reshape = Callable[[Shape, Any], Shape]
    Read = Callable[[tuple[Tensor, ...], Any], Tensor]


@dataclass(frozen=True)
class Change:
    """Conversion of tensors between a model and a GGUF file.

    Attributes:
        tensors: regular expression for the tensor names in the rules.
        write: (tensor, specification, block type or None) -> tensors in the file.
        read: (tensors in the file, specification) -> tensor in the model.
        parts: names that replace the module's name (`attn_kv_b`) in the file (default: a single tensor with this name).
        shapes: (shape, specification) -> shapes in the file (default: unchanged).
    """

    tensors: str
    write: "Write"
    read: "Read"
    parts: tuple[str, ...] | None = None
    shapes: "Callable[[Shape, Any], tuple[Shape, ...]]" = lambda shape, model: (shape,)

    def at(self, name: str) -> "Change":
        """Return the conversion of a tensor: the same in all layers."""
        return self

    def names(self, name: str) -> list[str]:
        """Return the names in the file for a tensor that a rule names."""
        if self.parts is None:
            return [name]
        path, _, kind = name.rpartition(".")
        return [f"{path.rpartition('.')[0]}.{part}.{kind}" for part in self.parts]


@dataclass(frozen=True)
class ChangeOfLayers:
    """Conversion of tensors whose sizes differ between layers.

    Attributes:
        tensors: regular expression for the tensor names in the rules.
        of: index of a layer -> conversion of its tensor.
    """

    tensors: str
    of: Callable[[int], Change]

    def at(self, name: str) -> Change:
        """Return the conversion of a tensor."""
        return self.of(int(name.split(".")[1]))


AnyChange = Change | ChangeOfLayers


def in_float(tensor: "Tensor", blocks: str | None) -> "Tensor":
    # decode a matrix that may be stored in quantized blocks
    from archetype.convert.gguf.quantize import dequantize

    return dequantize(tensor, blocks) if blocks is not None and not tensor.is_floating_point() else tensor


def _interleaved(tensor: "Tensor", heads: int) -> "Tensor":
    # rows from halves to pairs: (H * P, D) -> (H, 2, P / 2, D) -> (H, P / 2, 2, D)
    pairs: Tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2)
    return pairs.reshape(tensor.shape)


def _in_halves(tensor: "Tensor", heads: int) -> "Tensor":
    halves: Tensor = tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2)  # (H, P / 2, 2, D) -> (H, 2, P / 2, D)
    return halves.reshape(tensor.shape)


def _pairing(part: str) -> Change:
    def heads(tensor: "Tensor", model: Any) -> int:
        # whose number may differ between layers
        return int(tensor.shape[0] // first_attention(model).sizes(model.d_model).head_dim)

    return Change(
        rf"blk\.\d+\.attn_{part}\.(weight|bias)",
        lambda tensor, model, blocks: (_interleaved(tensor, heads(tensor, model)),),
        lambda stored, model: _in_halves(stored[0], heads(stored[0], model)),
    )


# llama.cpp rotates features 2i and 2i + 1 of queries and keys together; the model rotates i and i + P/2.
PAIRED = (_pairing("q"), _pairing("k"))
# Gemma's model stores w and multiplies by 1 + w; the file stores 1 + w.
AROUND_ONE = Change(
    r".*norm\.weight",
    lambda tensor, model, blocks: (tensor.float() + 1.0,),
    lambda stored, model: stored[0].float() - 1.0,
)
# ... except the gated norm of a delta network, whose weight is used as it is.
AROUND_ONE_BUT_GATED = replace(AROUND_ONE, tensors=r"(?!.*ssm_norm).*norm\.weight")
# What is not a tensor of the file.
UNWRITTEN = Change("", lambda tensor, model, blocks: (), lambda stored, model: stored[0], (), lambda shape, model: ())
NO_POOLER = replace(UNWRITTEN, tensors=r"cls\..*")  # llama.cpp uses mean pooling and leaves out BERT's pooler


def _unused(model: Any) -> int:
    return getattr(model.embedding.position, "offset", 0)


# RoBERTa's table begins with vectors that no position has.
USED_POSITIONS = Change(
    r"position_embd\.weight",
    lambda tensor, model, blocks: (tensor[_unused(model) :],),
    lambda stored, model: stored[0],
    shapes=lambda shape, model: ((shape[0] - _unused(model), *shape[1:]),),
)


def _rates(logarithms: "Tensor") -> "Tensor":
    return -logarithms.float().exp()


def _logarithms(stored: "tuple[Tensor, ...]", model: Any) -> "Tensor":
    return _nearest(_rates, stored[0].float(), (-stored[0].double()).log().float())


def _nearest(function: "Callable[[Tensor], Tensor]", stored: "Tensor", guess: "Tensor") -> "Tensor":
    # exp and log are not exact inverses in float32: of the two floats on each side of `guess`, take one whose image is
    # exactly `stored`, so that a round trip is exact; if there is none, keep `guess`
    import torch

    best = guess
    for end in (float("inf"), -float("inf")):
        near = guess
        for _ in range(2):
            near = torch.nextafter(near, torch.full_like(near, end))
            best = torch.where((function(best) != stored) & (function(near) == stored), near, best)
    return best


# llama.cpp stores the rates A = -exp(A_log) themselves
RATES = Change(r"blk\.\d+\.ssm_a", lambda tensor, model, blocks: (_rates(tensor),), _logarithms)


def reshaped(tensors: str, stored: "Reshape", back: "Reshape") -> Change:
    """Return a change that only reshapes: (shape, specification) -> shape in the file, and back."""
    return Change(
        tensors,
        lambda tensor, model, blocks: (tensor.reshape(stored(tuple(tensor.shape), model)),),
        lambda parts, model: parts[0].reshape(back(tuple(parts[0].shape), model)),
        shapes=lambda shape, model: (stored(shape, model),),
    )


def in_turn(first: Change, *others: Change) -> Change:
    """Return `first` and then `others` as one change; each converts a single tensor."""
    if not others:
        return first
    rest = in_turn(*others)
    return Change(
        first.tensors,
        lambda tensor, model, blocks: rest.write(first.write(tensor, model, blocks)[0], model, blocks),
        lambda parts, model: first.read((rest.read(parts, model),), model),
        shapes=lambda shape, model: rest.shapes(first.shapes(shape, model)[0], model),
    )


def _groups(model: Any) -> int:
    mixers = (mixer for block in model.layers for mixer in block.mixer.each())
    return next(mixer.num_groups for mixer in mixers if isinstance(mixer, Mamba2))


# depthwise kernels without torch's input-channel axis: (channels, 1, W) as (channels, W)
KERNEL, SHORT_KERNEL, MEMORY_KERNEL = (
    reshaped(rf"blk\.\d+\.{name}\.weight", lambda s, model: (s[0], s[2]), lambda s, model: (s[0], 1, s[1]))
    for name in ("ssm_conv1d", r"shortconv\.conv", "ple_conv1d")
)
# Mamba-2 has a rate and a gain for each head, stored as columns: (H) as (H, 1); Ling 3's rates have the other sign
GAINS_OF_HEADS = reshaped(r"blk\.\d+\.ssm_d", lambda s, model: (*s, 1), lambda s, model: s[:1])
RATES_OF_HEADS = in_turn(RATES, GAINS_OF_HEADS)
NEGATED = Change("", lambda tensor, model, blocks: (-tensor,), lambda stored, model: -stored[0])
POSITIVE_RATES = in_turn(RATES, NEGATED, GAINS_OF_HEADS)
# a row for each group that its gated norm normalizes: (features) as (groups, features / groups)
GROUPED_NORM = reshaped(
    r"blk\.\d+\.ssm_norm\.weight", lambda s, model: (_groups(model), s[0] // _groups(model)), lambda s, model: (-1,)
)
# the gate of a shared expert is a vector: (1, D) as (D)
GATE_VECTOR = reshaped(r"blk\.\d+\.ffn_gate_inp_shexp\.weight", lambda s, model: s[1:], lambda s, model: (1, *s))


def _delta(model: Any) -> GatedDeltaNet:
    mixers = (block.mixer for block in model.layers)
    return next(mixer for mixer in mixers if isinstance(mixer, GatedDeltaNet))


def _tiled(tensor: "Tensor", model: Any, back: bool, axis: int = 0) -> "Tensor":
    # value heads from the order of their key heads, K x (H / K), to (H / K) x K: the last heads along `axis`
    import torch

    mixer = _delta(model)
    groups, group = mixer.key_heads, mixer.num_heads // mixer.key_heads
    features = tensor.shape[axis]
    # keys and queries come first, where there are any
    values = mixer.num_heads * (mixer.v_head_dim if features >= mixer.num_heads * mixer.v_head_dim else 1)
    first, last = tensor.split((features - values, values), dim=axis)
    sizes = (group, groups, -1) if back else (groups, group, -1)
    last = last.unflatten(axis, sizes).transpose(axis, axis + 1).flatten(axis, axis + 2)
    return torch.cat((first, last), dim=axis)


def _tiling(tensors: str, axis: int = 0) -> Change:
    return Change(
        rf"blk\.\d+\.{tensors}",
        lambda tensor, model, blocks: (_tiled(in_float(tensor, blocks if axis else None), model, False, axis),),
        lambda stored, model: _tiled(stored[0], model, True, axis),
    )


# Qwen3.5's value heads are stored so that repeating all key heads in turn aligns them.
TILED = (
    _tiling(r"((attn_qkv|attn_gate|ssm_beta|ssm_alpha)\.weight|ssm_dt\.bias)"),
    in_turn(_tiling("ssm_a"), RATES),
    in_turn(_tiling(r"ssm_conv1d\.weight"), KERNEL),
    _tiling(r"ssm_out\.weight", axis=1),
)


def _head_scale(model: Any) -> float:
    return expect_kind(LanguageModelHead, expect_kind(EncoderDecoder, model, "kind").head, "head").scale


def _unscaled(stored: "tuple[Tensor, ...]", model: Any) -> "Tensor":
    scale = _head_scale(model)
    return _nearest(lambda norm: norm * scale, stored[0].float(), stored[0].float() / scale)


# llama.cpp has no key for the scale of a tied head, so the file's final norm is multiplied by it.
HEAD_SCALE = Change(
    r"dec\.output_norm\.weight", lambda tensor, model, blocks: (tensor.float() * _head_scale(model),), _unscaled
)


def _factors_beside(model: Any, index: int) -> tuple[float, float]:
    # factors on the input and the output of one of two mixers side by side
    mixer = model.layers[0].mixer
    return mixer.input_scales[index] if mixer.input_scales else 1.0, mixer.factors[index]


def _key_factor(model: Any) -> float:
    attention = model.layers[0].mixer.parts[0]
    head_dim = attention.sizes(model.d_model).head_dim
    return 1.0 if attention.scale is None else float(attention.scale * head_dim**0.5)


def _row_factors(model: Any) -> "Tensor":
    # of the gate, the channels, B, C and the steps
    import torch

    mixer = model.layers[0].mixer.parts[1]
    shared = mixer.num_groups * mixer.state_size
    sizes = torch.tensor([mixer.inner, mixer.inner, shared, shared, mixer.num_heads])
    return torch.tensor(mixer.in_scales or (1.0,) * 5).repeat_interleave(sizes)[:, None]


def _network_factors(model: Any) -> tuple[float, float]:
    # silu(m g) is m times the swish of slope m; the scale is of gate and output together
    part: Any = model.layers[0].feedforward
    if not isinstance(part, FeedForwardsTogether):
        return 1.0, 1.0
    inner: Any = part.parts[0]
    gate = getattr(inner.activation, "beta", 1.0)
    return gate, part.factors[0] / gate


def _folded(tensors: str, factor: "Callable[[Any], Any]") -> Change:
    return Change(
        tensors,
        lambda tensor, model, blocks: (in_float(tensor, blocks) * factor(model),),
        lambda stored, model: stored[0],
    )


# Falcon-H1's constant factors are multiplied into the matrices of a file, so that a model that is read has none.
FOLDED = (
    _folded(r"token_embd\.weight", lambda model: model.embedding.scale),
    _folded(r"output\.weight", lambda model: model.head.scale),
    _folded(r"blk\.\d+\.attn_[qv]\.weight", lambda model: _factors_beside(model, 0)[0]),
    _folded(r"blk\.\d+\.attn_k\.weight", lambda model: _factors_beside(model, 0)[0] * _key_factor(model)),
    _folded(r"blk\.\d+\.attn_output\.weight", lambda model: _factors_beside(model, 0)[1]),
    _folded(r"blk\.\d+\.ssm_in\.weight", lambda model: _row_factors(model) * _factors_beside(model, 1)[0]),
    _folded(r"blk\.\d+\.ssm_out\.weight", lambda model: _factors_beside(model, 1)[1]),
    _folded(r"blk\.\d+\.ffn_gate\.weight", lambda model: _network_factors(model)[0]),
    _folded(r"blk\.\d+\.ffn_down\.weight", lambda model: _network_factors(model)[1]),
)
