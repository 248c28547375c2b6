"""Inference of the residual wiring: a sum, learned factors, several streams, or attention over depth."""

import itertools

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.names import GATED_STREAMS
from archetype.convert.infer.tensors import GroupedTensors
from archetype.parts.altup.spec import AltUp
from archetype.parts.depth_attention.spec import DepthAttention
from archetype.parts.norm.spec import Affine, NoNorm
from archetype.parts.residual_sums.spec import NormedSum, ScaledSum
from archetype.parts.streams.spec import GatedStreams, Streams
from archetype.roles.residual import Residual, ResidualSum

# Residual streams: number, largest write weight, epsilon, and normalization steps of the mixing matrix.
STREAMS = ("hc_mult", "hc_magnitude", "hc_eps", "hc_sinkhorn_iters")
CONTENTS = ("mixer", "feedforward")


def read_residual(info: CheckpointInfo, tensors: GroupedTensors) -> Residual:
    """Return how sublayers read from the residual stream and add to it."""
    if info.quirks.scaled_residual:
        return ScaledSum()
    if tensors.layers[0].terms:
        return _normed_sum(info, tensors)
    if "residual.router.weight" in tensors.layers[0].residual:
        return _altup(info, tensors)
    if "residual_exit.query" in tensors.outer:
        return _depth_attention(info, tensors)
    if "residual_exit.norm_weight" in tensors.outer:
        return _gated_streams(info, tensors)
    config, is_mean = info.config, info.quirks.streams_mean and "residual_exit.weight" not in tensors.outer
    if "residual_exit.weight" not in tensors.outer and not is_mean:
        if tensors.layers[0].streams:
            raise info.missing(tensors.layers[0].prefix, "an unknown sum of the final residual streams")
        return ResidualSum()
    num_streams = config.size(STREAMS[0]) if is_mean else info.sides(tensors.outer["residual_exit.weight"])[0]
    config.expect(STREAMS[0], num_streams, "the weights of the streams have this number of rows")
    weights = [name for layer in tensors.layers for param, name in layer.residual.items() if param.endswith("s.weight")]
    rows, eps = {info.sides(name)[0] for name in weights}, config.positive(STREAMS[2])
    # rows of read and write weights, and of the mixing matrix (DeepSeek-V4)
    if rows == {(2 + num_streams) * num_streams} and config.get(STREAMS[3]) is not None:
        return Streams(
            num_streams=num_streams,
            sinkhorn_steps=config.size(STREAMS[3]),
            exit="mean" if is_mean else "weighted",
            eps=eps,
            norm_eps=info.norm(bias=False).eps,
        )
    if other := [name for name in weights if info.sides(name)[0] != 2 * num_streams]:
        raise info.missing(other[0], "mixing of residual streams")
    return Streams(
        num_streams=num_streams,
        sinkhorn_steps=0,
        write_scale=config.positive(STREAMS[1]),
        eps=eps,
        write_eps=eps,
        norm_eps=info.norm(bias=False).eps,
    )


def _altup(info: CheckpointInfo, tensors: GroupedTensors) -> AltUp:
    # Gemma 3n; the tensors of each layer, and a projection for each stream but the first at both ends
    num_streams = info.sides(tensors.layers[0].residual["residual.router.weight"])[0]
    info.config.expect("altup_num_inputs", num_streams, "the routers of the streams have this number of rows")
    for layer in tensors.layers:
        names = {name for name in layer.residual if name.startswith("residual.")}
        if names != {f"residual.{name}.weight" for name in ("norm", "router", "prediction", "correction")}:
            raise info.missing(layer.prefix, "alternating updates with unknown tensors")
    for end, other in itertools.product(("residual_entry", "residual_exit"), range(num_streams - 1)):
        if f"{end}.projections.{other}.weight" not in tensors.outer:
            raise info.missing(info.config.place, "alternating updates without projections of each stream")
    if (active := info.config.count("altup_active_idx", 0)) >= num_streams:
        raise info.config.error("altup_active_idx", f"there are only {num_streams} streams", "fix the file")
    return AltUp(num_streams=num_streams, active=active, norm=info.norm(bias=False))


def _normed_sum(info: CheckpointInfo, tensors: GroupedTensors) -> NormedSum:
    # learned factors on the stream and on its updates (ZAYA1)
    terms = {param.partition("_residual.")[2] for param in tensors.layers[0].terms}
    for layer in tensors.layers:
        if layer.terms.keys() != {f"{content}_residual.{term}" for content in CONTENTS for term in terms}:
            raise info.missing(layer.prefix, "learned factors on the residual stream in only some layers")
    carried, added = (
        Affine(bias=f"{name}.bias" in terms) if f"{name}.weight" in terms else NoNorm() for name in ("carried", "added")
    )
    return NormedSum(carried=carried, added=added)


def _depth_attention(info: CheckpointInfo, tensors: GroupedTensors) -> DepthAttention:
    # Kimi K3, where the first sublayer has no query
    of_each = {f"{name}_residual.attend.{param}" for name in CONTENTS for param in ("norm_weight", "query")}
    for layer in tensors.layers:
        first = set() if layer.index else {name for name in of_each if name.startswith("mixer")}
        if layer.residual.keys() != of_each - first:
            raise info.missing(layer.prefix, "attention over depth in only some sublayers")
    size = info.config.size("attn_res_block_size")
    return DepthAttention(layers_per_block=size, norm_weight=True, norm_eps=info.norm(bias=False).eps)


def _gated_streams(info: CheckpointInfo, tensors: GroupedTensors) -> GatedStreams:
    # Qwen4-Exp; what both sublayers of each layer and the stack's end have is the same
    of_each = {f"gates.{param}" for _, param in GATED_STREAMS} | {"write_weights.weight"}
    for layer in tensors.layers:
        if layer.residual.keys() != {f"{name}_residual.{param}" for name in CONTENTS for param in of_each}:
            raise info.missing(layer.prefix, "residual streams with unknown gates")
    rank, features = info.sides(tensors.outer["residual_exit.gate_down.weight"])
    norm = info.norm(bias=False)
    num_streams = info.config.size("hc_count")
    if num_streams * tensors.d_model != features or norm.kind != "rms":
        raise info.missing(tensors.outer["residual_exit.norm_weight"], f"streams with {features} features in total")
    info.config.expect("hc_lowrank", rank, "the gates of the streams have this number of rows")
    return GatedStreams(num_streams=num_streams, rank=rank, norm_eps=norm.eps, unit_offset=norm.unit_offset)
