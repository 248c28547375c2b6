"""Inference of a layer's wiring from the names of its norms."""

import re
from collections.abc import Mapping
from typing import Any

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.names import AFTER_ATTENTION, AFTER_NETWORK, BEFORE_NETWORK, FIRST, SECOND
from archetype.convert.infer.spellings import INITIAL_STD, NORMS_FIRST, PARALLEL
from archetype.convert.infer.tensors import Layer, Names
from archetype.models.block.spec import (
    Interpolated,
    Laurel,
    OutputNorm,
    ParallelResidual,
    PostNorm,
    PreNorm,
    SandwichNorm,
)
from archetype.parts.norm.spec import GatedRMSNorm, NoNorm
from archetype.roles.wiring import Wiring

GATE_RANK = "gated_norm_rank"
FIRST_OF_LLAMA, SECOND_OF_LLAMA = "input_layernorm", "post_attention_layernorm"
POST_EPS = "post_norm_eps"  # of norms of outputs (Muse Glimmer)
OF_NORM = re.compile(r"(\.gate_(down|up))?\.(weight|bias)$")  # ends of the names of a norm's tensors


def read_wiring(info: CheckpointInfo, layer: Layer, ends_in_norm: bool) -> tuple[Wiring, Names]:
    """Infer the wiring of a layer. Return it with the names of the norms' tensors, keyed by Archetype's names.

    Args:
        ends_in_norm: whether the model has a norm after the last layer.
    """
    paths = {_without_end(name) for name in layer.norms}
    if any(param.endswith("gates.norm_weight") for param in layer.residual):  # what a sublayer reads has its norm
        if paths:
            raise info.missing(layer.prefix, "residual streams with two norms in a row")
        return PreNorm(norm=NoNorm()), {}
    if not paths:
        return _wiring_without_weights(info, layer), {}
    contents = {"mixer": bool(layer.mixer), "feedforward": bool(layer.network) or layer.sparse}
    there = [name for name, present in contents.items() if present]
    kind, norm_paths = _wiring(info, layer, paths, ends_in_norm, there)
    if unplaced := sorted(paths - set(norm_paths.values())):
        raise info.no_place(f"{layer.prefix}.{unplaced[0]}.weight")
    if None in norm_paths.values() or len(set(norm_paths.values())) < len(norm_paths):
        raise info.missing(layer.prefix, f"norms only at {', '.join(sorted(paths))}")
    names = {
        f"{param}.{suffix}": layer.norms[f"{path}.{suffix}"]
        for param, path in norm_paths.items()
        for suffix in ("weight", "bias", "gate_down.weight", "gate_up.weight")
        if f"{path}.{suffix}" in layer.norms
    }
    wiring, gated = _wiring_of(info, kind, norm_paths, contents, names), _gated_norms(info, layer, names)
    if (left := layer.residual.get("mixer_path.left.weight")) is not None and kind is SandwichNorm:  # Gemma 3n
        rank = info.sides(left)[0]
        info.config.expect("laurel_rank", rank, "the path beside attention has this rank")
        return Laurel(norm=info.norm(bias=False), rank=rank), names
    return wiring.replace(**gated) if gated else wiring, names


def _without_end(name: str) -> str:
    return OF_NORM.sub("", name)


def _gated_norms(info: CheckpointInfo, layer: Layer, names: Names) -> dict[str, GatedRMSNorm]:
    # norms with a gate of low rank, by their fields of the wiring
    norms = {}
    for param in sorted({_without_end(name) for name in names if ".gate_" in name}):
        shapes = [info.shapes.get(names.get(f"{param}.gate_{side}.weight", "")) for side in ("down", "up")]
        plain = info.norm(bias=f"{param}.bias" in names)
        if shapes[0] is None or shapes[1] != shapes[0][::-1] or plain.kind != "rms" or plain.unit_offset:
            raise info.missing(layer.prefix, "an unknown gated norm")
        if info.config.get(GATE_RANK) is not None:
            info.config.expect(GATE_RANK, shapes[0][0], "the gates of norms have this number of rows")
        norms[param] = GatedRMSNorm(eps=plain.eps, rank=shapes[0][0])
    return norms


def _wiring_of(
    info: CheckpointInfo,
    kind: type[Any],
    norm_paths: Mapping[str, str | None],
    contents: Mapping[str, bool],
    names: Names,
) -> Wiring:
    norm = info.norm(bias=any(name.endswith(".bias") for name in names))
    if kind is PreNorm and all(contents.values()) and "mixer_norm" not in norm_paths:
        return PreNorm(norm=norm, mixer_norm=NoNorm())
    if kind is SandwichNorm and "mixer_post_norm" not in norm_paths:
        return SandwichNorm(norm=norm, mixer_post_norm=NoNorm())
    if kind is SandwichNorm and "feedforward_norm" not in norm_paths:
        return SandwichNorm(norm=norm, feedforward_norm=NoNorm())
    if kind is ParallelResidual:
        return ParallelResidual(norm=norm, shared_norm="feedforward_norm" not in norm_paths)
    if kind is SandwichNorm and (eps := info.config.optional_positive(POST_EPS)) is not None:
        post = norm.replace(eps=eps)
        return SandwichNorm(norm=norm, mixer_post_norm=post, feedforward_post_norm=post)
    return kind(norm=norm)


def _wiring_without_weights(info: CheckpointInfo, layer: Layer) -> Wiring:
    # norms without weights leave no tensors
    if layer.residual.keys() & {"mixer_rate", "feedforward_rate"}:  # Dory
        rate, stored = info.config.positive("ngpt_alpha_init", 0.05), info.positive(INITIAL_STD, 0.02)
        return Interpolated(norm=info.norm(bias=False, weight=False), rate=rate, stored_rate=stored)
    if info.quirks.norm is None:
        info.assume("layers[*].wiring", "pre_norm with norms without weights", "no tensor is a norm")
    return PreNorm(norm=info.norm(bias=False, weight=False))


def _wiring(
    info: CheckpointInfo, layer: Layer, paths: set[str], ends_in_norm: bool, contents: list[str]
) -> tuple[type[Any], dict[str, str | None]]:
    # kind of wiring and the file's name of each norm, for a layer with a mixer, a network or both

    def first_present(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in paths), None)

    before, after = first_present(BEFORE_NETWORK), first_present(AFTER_NETWORK)
    first, second = first_present(FIRST), first_present(SECOND)
    if len(contents) == 1:
        # if all layers have both norms, a layer with only a network keeps the network's norm name (DeciLM)
        alone = first if contents == ["mixer"] else first or before or second
        return PreNorm, {f"{contents[0]}_norm": alone}
    # a norm before and after each content (Gemma 2)
    if layer.around and first and after:  # the network has its norms inside, but for one of its output (Gemma 4)
        attention = first_present(AFTER_ATTENTION)
        return SandwichNorm, {"mixer_norm": first, "mixer_post_norm": attention, "feedforward_post_norm": after}
    if paths == {name for norm in (FIRST_OF_LLAMA, SECOND_OF_LLAMA) for name in (norm, f"{norm}_2")}:  # Ouro
        places = ("mixer_norm", "mixer_post_norm", "feedforward_norm", "feedforward_post_norm")
        names = (FIRST_OF_LLAMA, f"{FIRST_OF_LLAMA}_2", SECOND_OF_LLAMA, f"{SECOND_OF_LLAMA}_2")
        return SandwichNorm, dict(zip(places, names, strict=True))
    if after and first and before is None and len(paths) == 3 and "post_attention_layernorm" in paths:
        # the network alone has two, of which the first has Llama's name (A.X K1)
        between = "post_attention_layernorm"
        return SandwichNorm, {"mixer_norm": first, "feedforward_norm": between, "feedforward_post_norm": after}
    if after and first:
        return SandwichNorm, {
            "mixer_norm": first,
            "mixer_post_norm": first_present(AFTER_ATTENTION),
            "feedforward_norm": before or first_present(("ffn_norm", "post_attention_layernorm")),
            "feedforward_post_norm": after,
        }
    if first and before and not second:
        return PreNorm, {"mixer_norm": first, "feedforward_norm": before}
    # only outputs are normalized (OLMo 2)
    if after:
        return OutputNorm, {"mixer_norm": first_present(AFTER_ATTENTION), "feedforward_norm": after}
    # behind a norm of the embedding, the first mixer has none (ModernBERT)
    if first is None and second is not None and layer.number == 0:
        return PreNorm, {"feedforward_norm": second}
    # one norm for both contents, which then run in parallel (GPT-J)
    if second is None:
        return ParallelResidual, {"mixer_norm": first}
    both: dict[str, str | None] = {"mixer_norm": first, "feedforward_norm": second}
    parallel, pre_norm = info.first(PARALLEL), info.first(NORMS_FIRST)
    if parallel is None:
        parallel = info.settle("parallel", (False, True), "no key says whether mixer and network run in parallel")
    if parallel:
        return ParallelResidual, both
    if pre_norm is None:
        usual = ends_in_norm
        pre_norm = info.settle("norms_first", (usual, not usual), "no key says whether norms come first")
    return PreNorm if pre_norm else PostNorm, both
