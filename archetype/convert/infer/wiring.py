"""Where a layer's norms stand, by their names and number."""

from typing import Any

from archetype import spec
from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.names import AFTER_ATTENTION, AFTER_NETWORK, BEFORE_NETWORK, FIRST, SECOND
from archetype.convert.infer.tensors import Layer, Named

PARALLEL = ("use_parallel_residual", "parallel_residual", "parallel_attn")
NORMS_FIRST = ("do_layer_norm_before", "normalize_before")


def read_wiring(clues: CheckpointInfo, layer: Layer, ends_in_norm: bool) -> tuple[spec.Wiring, Named]:
    """How norms and residuals go around a layer's contents, and the norms' tensors by our names."""
    paths = {name.rpartition(".")[0] for name in layer.norms}
    if not paths:
        return _without_weights(clues), {}
    made, places = _places(clues, paths, ends_in_norm)
    if left := sorted(paths - set(places.values())):
        raise clues.strange(f"{layer.prefix}.{left[0]}.weight")
    if None in places.values() or len(set(places.values())) < len(places):
        raise clues.missing(layer.prefix, f"a wiring with norms only at {', '.join(sorted(paths))}")
    named = {
        f"{ours}.{kind}": layer.norms[f"{theirs}.{kind}"]
        for ours, theirs in places.items()
        for kind in ("weight", "bias")
        if f"{theirs}.{kind}" in layer.norms
    }
    norm = clues.norm(bias="mixer_norm.bias" in named)
    if made is spec.ParallelResidual:
        return spec.ParallelResidual(norm=norm, shared_norm="feedforward_norm" not in places), named
    wiring: spec.Wiring = made(norm=norm)
    return wiring, named


def _without_weights(clues: CheckpointInfo) -> spec.Wiring:
    """A layer whose norms have nothing to store."""
    if clues.habit.norm is None:
        clues.assume("layers[*].wiring", "pre_norm with norms without weights", "no tensor is a norm")
    return spec.PreNorm(norm=clues.norm(bias=False, weight=False))


def _places(clues: CheckpointInfo, paths: set[str], ends_in_norm: bool) -> tuple[type[Any], dict[str, str | None]]:
    """The kind of wiring, and the file's norm at each of its places."""

    def one(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in paths), None)

    before, after = one(BEFORE_NETWORK), one(AFTER_NETWORK)
    first, second = one(FIRST), one(SECOND)
    if after and first:
        return spec.SandwichNorm, {
            "mixer_norm": first,
            "mixer_post_norm": one(AFTER_ATTENTION),
            "feedforward_norm": before or one(("post_attention_layernorm",)),
            "feedforward_post_norm": after,
        }
    if first and before and not second:
        return spec.PreNorm, {"mixer_norm": first, "feedforward_norm": before}
    if after:
        return spec.OutputNorm, {"mixer_norm": one(AFTER_ATTENTION), "feedforward_norm": after}
    if second is None:
        return spec.ParallelResidual, {"mixer_norm": first}
    both: dict[str, str | None] = {"mixer_norm": first, "feedforward_norm": second}
    if clues.first(PARALLEL):
        return spec.ParallelResidual, both
    return spec.PreNorm if _norms_first(clues, ends_in_norm) else spec.PostNorm, both


def _norms_first(clues: CheckpointInfo, ends_in_norm: bool) -> bool:
    """Whether norms stand before the contents: then the last layer is followed by one more."""
    given = clues.first(NORMS_FIRST)
    return ends_in_norm if given is None else bool(given)
