"""Residual streams in GGUF that are not mixed (Hy4)."""

from typing import Any

from archetype.convert.gguf.finish import limited, limited_keys
from archetype.convert.gguf.keys import FileKeys, Keys
from archetype.families.keys import expect_kind
from archetype.parts.streams.spec import Streams

PREFIX = "hyper_connection"


def with_streams(keys: FileKeys, model: Any) -> Any:
    """Residual streams, and bounded gates of the experts."""
    eps = keys.positive(f"{PREFIX}.epsilon")
    streams = Streams(
        num_streams=keys.size(f"{PREFIX}.count"),
        sinkhorn_steps=0,
        write_scale=keys.positive(f"{PREFIX}.magnitude"),
        eps=eps,
        write_eps=eps,
        norm_eps=model.final_norm.eps,
    )
    return limited(keys, model).replace(residual=streams)


def streams_keys(model: Any) -> Keys:
    streams = expect_kind(Streams, model.residual, "residual")
    return {
        f"{PREFIX}.count": streams.num_streams,
        f"{PREFIX}.epsilon": streams.eps,
        f"{PREFIX}.magnitude": streams.write_scale,
        **limited_keys(model),
    }
