"""Residual streams in GGUF: Hy4 (without mixing), DeepSeek-V4 and GLM-5.3-Flash."""

from typing import Any

from archetype.convert.gguf.finish import limited, limited_keys
from archetype.convert.gguf.keys import FileKeys, Keys, unsupported
from archetype.families.keys import expect_kind
from archetype.parts.streams.spec import Streams

PREFIX, MIXED = "hyper_connection", 4  # constant of llama.cpp: number of mixed streams


def read_streams(keys: FileKeys, norm_eps: float, mixed: bool = True, **fields: Any) -> Streams:
    if mixed:
        keys.expect(f"{PREFIX}.count", MIXED, f"other than {MIXED} streams")
        fields["sinkhorn_steps"] = keys.size(f"{PREFIX}.sinkhorn_iterations")
    eps = keys.positive(f"{PREFIX}.epsilon")
    return Streams(num_streams=keys.size(f"{PREFIX}.count"), eps=eps, norm_eps=norm_eps, **fields)


def written_streams(model: Any) -> Keys:
    """Return the keys of mixed streams.

    Raises:
        CheckpointError: the model has another residual, or another number of streams.
    """
    streams = expect_kind(Streams, model.residual, "residual")
    if streams.num_streams != MIXED:
        raise unsupported("residual.num_streams", f"{streams.num_streams} here, only {MIXED}")
    return {
        f"{PREFIX}.count": MIXED,
        f"{PREFIX}.sinkhorn_iterations": streams.sinkhorn_steps,
        f"{PREFIX}.epsilon": streams.eps,
    }


def hy4(keys: FileKeys, model: Any) -> Any:
    """Add residual streams without mixing, and clamps of the experts."""
    streams = read_streams(
        keys,
        model.final_norm.eps,
        mixed=False,
        sinkhorn_steps=0,
        write_scale=keys.positive(f"{PREFIX}.magnitude"),
        write_eps=keys.positive(f"{PREFIX}.epsilon"),
    )
    return limited(keys, model).replace(residual=streams)


def hy4_keys(model: Any) -> Keys:
    streams = expect_kind(Streams, model.residual, "residual")
    return {
        f"{PREFIX}.count": streams.num_streams,
        f"{PREFIX}.epsilon": streams.eps,
        f"{PREFIX}.magnitude": streams.write_scale,
        **limited_keys(model),
    }


def glm5(keys: FileKeys, model: Any) -> Any:
    """Add residual streams whose mean is the output, and clamps of all networks (GLM-5.3-Flash)."""
    streams = read_streams(keys, model.final_norm.eps, exit="mean")
    return limited(keys, model, everywhere=True).replace(residual=streams)


def glm5_keys(model: Any) -> Keys:
    return written_streams(model) | limited_keys(model, everywhere=True)
