"""One small specification for every part and every kind of model, by name."""

from typing import Any

from archetype import spec

PRE = {"kind": "pre_norm", "norm": {"kind": "rms"}}
ATTENTION = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}
RMS = {"kind": "rms"}
GATED = {"kind": "gated", "d_ff": 44, "activation": "silu"}
PLAIN_ENCODER = {
    "mixer": {"kind": "attention", "num_heads": 4},
    "feedforward": {"kind": "mlp", "d_ff": 64, "activation": "gelu", "bias": True},
}
SIZES = {"vocab_size": 31, "context_length": 24, "d_model": 16}


def block(**changes: Any) -> dict[str, Any]:
    """A layer as a Llama has it, with some of its contents replaced."""
    return {"wiring": PRE, "mixer": ATTENTION, "feedforward": GATED} | changes


def decoder(*layers: dict[str, Any], **changes: Any) -> spec.ModelSpec:
    """A decoder of some layers."""
    return spec.parse({"kind": "decoder", **SIZES, "layers": list(layers), "final_norm": {"kind": "rms"}} | changes)


def mixed(**mixer: Any) -> spec.ModelSpec:
    """A decoder of two layers with another mixer."""
    return decoder(block(mixer=mixer), block(mixer=mixer))


def attending(**changes: Any) -> spec.ModelSpec:
    """A decoder of two layers with another attention."""
    return mixed(**ATTENTION | changes)


def experts(**changes: Any) -> dict[str, Any]:
    """A mixture of experts."""
    return {"kind": "experts", "num_experts": 6, "experts_per_token": 2, "expert": GATED} | changes


def encoder(**changes: Any) -> spec.ModelSpec:
    """A text encoder."""
    layer = {"wiring": {"kind": "post_norm", "norm": {"kind": "layer"}}, **PLAIN_ENCODER}
    embedding = {"position": {"kind": "learned"}, "num_token_types": 2, "norm": {"kind": "layer"}}
    stack = {"layers": [layer, layer], "final_norm": {"kind": "none"}}
    return spec.parse({"kind": "encoder", **SIZES, "embedding": embedding, **stack} | changes)


def pair(**changes: Any) -> spec.ModelSpec:
    """An encoder and a decoder."""
    layer = {"wiring": PRE, **PLAIN_ENCODER}
    crossed = layer | {"cross_attention": {"kind": "attention", "num_heads": 4}}
    ends = {"final_norm": {"kind": "rms"}}
    stacks = {"encoder": {"layers": [layer]} | ends, "decoder": {"layers": [crossed, crossed]} | ends}
    return spec.parse({"kind": "encoder_decoder", **SIZES, **stacks} | changes)


def reading(**changes: Any) -> spec.ModelSpec:
    """A decoder whose layers read the keys of the one before and of the first, with another attention in all."""
    mixer = ATTENTION | {"position": {"kind": "rotary"}} | changes
    readers = [block(mixer=mixer | {"keys_from": layer}) for layer in (-1, 0)]
    return decoder(block(mixer=mixer), *readers, block(mixer=mixer))


def wired(**wiring: Any) -> spec.ModelSpec:
    """A decoder whose norms stand elsewhere."""
    return decoder(block(wiring={"norm": {"kind": "layer"}} | wiring))


RELATIVE = {"kind": "relative_bias", "num_buckets": 8, "max_distance": 16}
SPARSE = {
    "kind": "native_sparse", "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "v_head_dim": 5, "window": 4,
    "compression": {"block": 4, "stride": 2, "hidden": 7},
    "selection": {"block": 4, "top_blocks": 3, "local_blocks": 1},
}  # fmt: skip
SHARED = {"shared_keys": True, "compression": {"block": 4}, "v_head_dim": None}
COMPRESSED = {
    "kind": "compressed", "num_heads": 4, "head_dim": 6, "rotary_dim": 4, "query_rank": 5, "window": 4, "groups": 2,
    "group_rank": 3,
}  # fmt: skip
LATENT = {
    "kind": "latent",
    "num_heads": 4,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
INDEX = {"kind": "lightning", "num_heads": 3, "head_dim": 4, "top_k": 5, "position": {"kind": "rotary", "dim": 2}}
RWKV7 = {"kind": "rwkv7", "num_heads": 4, "decay_rank": 3, "rate_rank": 2, "gate_rank": 5, "value_rank": 2}
GAIN = {"init": 4.0, "stored": 0.5, "squared": True}
RECURRENT_PAIR = {
    "wiring": {"kind": "plain"},
    "mixer": {"kind": "lstm"},
}
READER = {
    "wiring": {"kind": "output_norm", "norm": {"kind": "rms"}}, "mixer": "none",
    "feedforward": {"kind": "per_layer_input", "features": 6},
}  # fmt: skip
PATCHES = {"d_model": 16, "layers": [block()], "final_norm": {"kind": "rms"}}
PICTURE = {
    "kind": "vision_encoder",
    "image_size": 8,
    "patch_size": 4,
    "d_model": 16,
    "layers": [{"wiring": PRE, **PLAIN_ENCODER}],
    "final_norm": {"kind": "none"},
}

DECODERS: dict[str, spec.ModelSpec] = {
    "attention": attending(),
    "biases": attending(bias=True),
    "half-biased": attending(bias={"q": True, "k": True, "v": True, "o": False}),
    "wide heads": attending(head_dim=6),
    "rotary": attending(position={"kind": "rotary"}),
    "alibi": attending(position={"kind": "alibi"}),
    "relative bias": attending(position=RELATIVE),
    "transformer-xl": attending(position={"kind": "transformer_xl"}),
    "relative logits": attending(position={"kind": "relative_logits", "rank": 3, "extent": 5}),
    "relative logits, window": attending(
        position={"kind": "relative_logits", "rank": 3, "extent": 4},
        pattern={"kind": "window", "size": 4},
        query_scale={"beta": 0.3, "length": 3, "offset": 1, "form": "log_ratio"},
    ),
    "additive": attending(score="additive"),
    "softcap": attending(softcap=5.0),
    "sinks": attending(sinks=True),
    "sinks, tiles": attending(sinks=True, pattern={"kind": "fixed", "stride": 4, "num_summary": 1}),
    "off by one": attending(softmax="off_by_one"),
    "softpick": attending(softmax="softpick", position={"kind": "rotary"}),
    "softpick, tiles": attending(softmax="softpick", pattern={"kind": "fixed", "stride": 4, "num_summary": 1}),
    "wide values": attending(v_head_dim=6, value_scale=0.7),
    "wide values, tiles": attending(v_head_dim=6, sinks=True, pattern={"kind": "fixed", "stride": 4, "num_summary": 1}),
    "narrow values": attending(
        head_dim=6, v_head_dim=3, value_norm={"kind": "rms"}, pattern={"kind": "window", "size": 5}
    ),
    "keys as values": attending(keys_as_values=True, value_norm={"kind": "rms", "weight": False}),
    "keys as values, normed": attending(
        keys_as_values=True, value_norm={"kind": "rms", "weight": False}, qk_norm={"kind": "rms"}
    ),
    "output scale": decoder(block(output_scale=True), block(output_scale=True)),
    "query scale": attending(query_scale={"beta": 0.5, "length": 4}),
    "norm before positions": decoder(
        block(), embedding={"position": {"kind": "learned"}, "norm": {"kind": "layer"}, "norm_first": True}
    ),
    "gate": attending(gate={}, position={"kind": "rotary"}),
    "gate by head": attending(gate={"per": "head", "activation": "softplus"}, softcap=5.0),
    "differential": attending(differential={}, position={"kind": "rotary"}),
    "differential, window": attending(
        differential={"norm": {"kind": "layer"}},
        gate={"per": "head"},
        sinks=True,
        pattern={"kind": "window", "size": 5},
    ),
    "norm of heads": attending(gate={}, heads_norm={"kind": "rms"}),
    "joint convolution": attending(
        joint_convolution={"kernels": [2, 3]},
        key_factors=True,
        position={"kind": "rotary"},
        qk_norm={"kind": "rms", "weight": False, "eps": 1e-12},
    ),
    "gains": decoder(
        block(
            mixer=ATTENTION | {"gate": {}, "gate_gain": GAIN, "query_gain": GAIN, "position": {"kind": "rotary"}},
            feedforward=GATED | {"hidden_gain": {"init": 2.0}},
        ),
        block(feedforward={"kind": "mlp", "d_ff": 40, "activation": "relu", "hidden_gain": GAIN}),
        head={"gain": {"stored": 0.5}},
    ),
    "qk norm after rope": attending(qk_norm={"kind": "rms"}, qk_norm_after_rope=True, position={"kind": "rotary"}),
    "qk norm": attending(qk_norm={"kind": "layer"}),
    "window": attending(pattern={"kind": "window", "size": 5}),
    "chunked": attending(pattern={"kind": "chunked", "size": 4}),
    "strided": attending(pattern={"kind": "strided", "stride": 4}),
    "fixed": attending(pattern={"kind": "fixed", "stride": 4, "num_summary": 1}),
    "global window": attending(pattern={"kind": "global_window", "size": 4}),
    "keys of another layer": reading(softcap=5.0),
    "keys of another layer, window": reading(pattern={"kind": "window", "size": 5}, qk_norm={"kind": "rms"}),
    "latent": mixed(**LATENT),
    "latent, low rank": mixed(**LATENT, query={"kind": "low_rank", "rank": 7}, bias=True),
    "latent, gate": mixed(**LATENT, gate={}, query_scale={"beta": 0.5, "length": 4}),
    "latent, two query vectors": mixed(
        **LATENT, query={"kind": "low_rank", "rank": 7, "joins_unnormed": True}, gate={}, gate_from="query"
    ),
    "latent, sinks": mixed(**LATENT, sinks=True, gate={"per": "head"}, position="none"),
    "latent, scaled": mixed(
        **LATENT, query={"kind": "low_rank", "rank": 7, "scale": 1.5}, latent_scale=0.7, key_norm={"kind": "rms"}
    ),
    "index": attending(index=INDEX, sinks=True),
    "pools": attending(index={"kind": "pools", "pool": 3, "top_pools": 2, "num_heads": 5, "head_dim": 4}),
    "moba": attending(
        index={
            "kind": "blocks",
            "block": 4,
            "top_blocks": 2,
            "num_heads": 4,
            "head_dim": 4,
            "pooling": "mean",
            "norm": "none",
            "loss_weight": 0.0,
            "own_projections": False,
        }
    ),
    "native sparse": mixed(**SPARSE),
    "native sparse, means of shared keys": mixed(**SPARSE | SHARED),
    "compressed window": mixed(**COMPRESSED),
    "compressed": mixed(**COMPRESSED, pooling={"rate": 3}),
    "compressed, index": mixed(
        **COMPRESSED, pooling={"rate": 2, "overlap": True, "index": {"top_k": 3, "num_heads": 4, "head_dim": 6}}
    ),
    "latent, window": mixed(**LATENT, query={"kind": "low_rank", "rank": 7}, pattern={"kind": "window", "size": 3}),
    "latent, index": mixed(**LATENT, query={"kind": "low_rank", "rank": 7}, index=INDEX),
    "rnn": mixed(kind="rnn"),
    "lstm": mixed(kind="lstm"),
    "gru": mixed(kind="gru"),
    "mamba": mixed(kind="mamba", state_size=3, bias=True),
    "mamba, norms": mixed(kind="mamba", state_size=3, norm={"kind": "rms"}),
    "mamba2": mixed(kind="mamba2", num_heads=4, head_dim=6, state_size=5, num_groups=2, bias=True),
    "mamba2, chunks": mixed(
        kind="mamba2", num_heads=3, head_dim=4, state_size=5, chunk_size=8, dt_limit_min=0.6, dt_limit_max=0.8
    ),
    "mamba2, norm first": mixed(
        kind="mamba2", num_heads=4, head_dim=6, state_size=5, norm="before_gate", in_scales=[0.5, 1.5, 0.7, 2.0, 0.9]
    ),
    "mamba2, no norm": mixed(kind="mamba2", num_heads=3, head_dim=4, state_size=5, norm="none"),
    "delta net": mixed(kind="gated_delta_net", num_heads=4, num_key_heads=2, head_dim=5, v_head_dim=6),
    "delta net, chunks": mixed(
        kind="gated_delta_net", num_heads=3, head_dim=4, v_head_dim=6, chunk_size=8, negative_eigenvalues=True
    ),
    "delta net, decays of channels": mixed(
        kind="gated_delta_net",
        num_heads=3,
        head_dim=4,
        v_head_dim=6,
        chunk_size=8,
        decay="channel",
        decay_rank=5,
        decay_bound=-5.0,
        gate="sigmoid",
        gate_rank=3,
        gate_bias=True,
    ),
    "delta net, shared keys with decays": mixed(
        kind="gated_delta_net", num_heads=4, num_key_heads=2, head_dim=5, v_head_dim=6, decay="channel"
    ),
    "delta net without decay": mixed(
        kind="gated_delta_net", num_heads=3, head_dim=4, v_head_dim=6, decay="none", gate="none"
    ),
    "linear attention": mixed(
        kind="linear_attention", num_heads=4, feature_map="elu", v_head_dim=6, norm={"kind": "none"}
    ),
    "retention": mixed(
        kind="linear_attention",
        num_heads=3,
        head_dim=4,
        v_head_dim=8,
        decay="fixed",
        position={"kind": "rotary"},
        norm={"kind": "rms", "weight": False},
        gate="silu",
        chunk_size=8,
    ),
    "lightning": mixed(
        kind="linear_attention",
        num_heads=4,
        head_dim=6,
        decay={"kind": "fixed", "form": "alibi", "factor": 0.5},
        feature_map="silu",
        value_activation="silu",
        scale=1.0,
        norm_over="all",
        gate="sigmoid",
        chunk_size=8,
    ),
    "gla": mixed(
        kind="linear_attention",
        num_heads=2,
        head_dim=5,
        v_head_dim=6,
        decay={"kind": "per_channel", "rank": 3},
        gate="silu",
        gate_rank=4,
        chunk_size=8,
    ),
    "hgrn2": mixed(
        kind="linear_attention",
        num_heads=2,
        head_dim=5,
        feature_map="silu",
        norm_over="all",
        conv_kernel=3,
        decay={"kind": "per_channel", "temperature": 1.0, "floor": 0.2, "bias": False, "gives_keys": True},
    ),
    "linear attention, decay of heads": mixed(
        kind="linear_attention",
        num_heads=2,
        head_dim=4,
        qk_norm={"kind": "rms"},
        conv_kernel=2,
        decay="per_head",
    ),
    "rg-lru": mixed(kind="rg_lru", num_heads=2, chunk_size=8),
    "rg-lru, wide": mixed(kind="rg_lru", num_heads=3, width=24, activation="silu"),
    "mlstm": mixed(kind="mlstm", num_heads=4, chunk_size=8),
    "mlstm, biases": mixed(kind="mlstm", num_heads=3, head_dim=5, v_head_dim=6, bias=True, gate_softcap=None),
    "rwkv4": decoder(block(mixer="rwkv4", feedforward={"kind": "channel_mixing", "d_ff": 40, "receptance": True})),
    "rwkv4, wide": mixed(kind="rwkv4", width=28, chunk_size=8),
    "rwkv7": decoder(
        block(mixer=RWKV7, feedforward={"kind": "channel_mixing", "d_ff": 40}),
        block(mixer=RWKV7 | {"values_from": 0, "chunk_size": 8, "length_eps": 1e-6}),
    ),
    "mamba3": mixed(kind="mamba3", num_heads=4, head_dim=6, state_size=8, num_groups=2, chunk_size=8),
    "mamba3, several vectors": mixed(
        kind="mamba3", num_heads=3, head_dim=4, state_size=6, rank=2, rotary_dim=6, norm=True, chunk_size=8
    ),
    "short convolution": mixed(kind="short_convolution", bias=True),
    "hybrid": decoder(block(mixer={"kind": "mamba"}), block(), block(mixer={"kind": "mamba"}), block()),
    "plain": decoder({"wiring": {"kind": "plain"}, "mixer": {"kind": "lstm"}}),
    "no feed-forward": decoder(block(feedforward={"kind": "none"})),
    "clamped": decoder(
        block(feedforward=GATED | {"activation": {"kind": "swish", "beta": 1.7}, "limit": 0.5, "unit_offset": True})
    ),
    "mlp": decoder(block(feedforward={"kind": "mlp", "d_ff": 40, "activation": "relu", "bias": True})),
    "norms of hidden features": decoder(
        block(feedforward={"kind": "mlp", "d_ff": 40, "activation": "relu", "hidden_norm": {"kind": "layer"}}),
        block(feedforward=GATED | {"hidden_norm": {"kind": "rms"}}, mixer=ATTENTION | {"heads_norm": {"kind": "rms"}}),
    ),
    "trained activations": decoder(
        block(feedforward={"kind": "mlp", "d_ff": 40, "activation": "xielu"}),
        block(feedforward=GATED | {"activation": "poly_norm"}),
    ),
    "experts": decoder(block(feedforward=experts())),
    "biased experts, shared": decoder(block(feedforward=experts(expert=GATED | {"bias": True}, shared=GATED))),
    "clamped experts": decoder(
        block(
            feedforward=experts(router={"kind": "softmax", "bias": True}, expert=GATED | {"limit": 0.5, "bias": True})
        )
    ),
    "delayed experts": decoder(
        block(feedforward={"kind": "together", "parts": [GATED, experts()], "delayed": [False, True]}),
        block(),
        block(feedforward={"kind": "together", "parts": [GATED, GATED, GATED], "delayed": [True, False, True]}),
        block(),
    ),
    "mlp router": decoder(
        block(feedforward=experts(router={"kind": "mlp", "width": 6})),
        block(feedforward=experts(router={"kind": "mlp", "width": 6, "carried": True, "expert_bias": True})),
    ),
    "n-gram embedding": decoder(
        {
            "wiring": {"kind": "pre_norm", "norm": "none"},
            "mixer": "none",
            "residual_scale": 0.2,
            "feedforward": {
                "kind": "ngram_embedding",
                "rows": 40,
                "row_width": 3,
                "n": 3,
                "splits": 2,
            },
        },
        block(),
    ),
    "latent experts": decoder(block(feedforward=experts(latent_width=5, weighs="inputs", shared=GATED))),
    "latent experts, normed": decoder(
        block(
            feedforward=experts(
                latent_width=5,
                latent_norm=RMS,
                expert=GATED | {"activation": {"kind": "situ", "beta": 0.5}, "up_bound": 0.7},
            )
        )
    ),
    "narrow tokens": decoder(
        block(),
        embedding={"position": {"kind": "learned"}, "width": 5, "project_first": True},
        head={"tied": True, "transform": {"activation": "none", "bias": False, "width": 5}},
    ),
    "plain experts": decoder(
        block(), block(feedforward=experts(expert={"kind": "mlp", "d_ff": 9, "activation": "relu"}))
    ),
    "post norm": wired(kind="post_norm"),
    "sandwich": wired(kind="sandwich"),
    "parallel": wired(kind="parallel"),
    "parallel, shared norm": wired(kind="parallel", shared_norm=True),
    "batch norm": wired(kind="pre_norm", norm={"kind": "batch"}),
    "unit offset": wired(kind="pre_norm", norm={"kind": "rms", "unit_offset": True}),
    "gated norm": wired(kind="sandwich", norm={"kind": "gated_rms", "rank": 3}),
    "dynamic tanh": wired(kind="pre_norm", norm={"kind": "dynamic_tanh"}),
    "dynamic erf": wired(kind="post_norm", norm={"kind": "dynamic_erf"}),
    "canon": decoder(
        block(
            mixer=ATTENTION | {"convolutions": {}, "position": {"kind": "rotary"}},
            feedforward=GATED | {"convolutions": {"at": ["input", "hidden", "output"], "kernel": 3}},
        )
    ),
    "interpolated": decoder(block(wiring="interpolated"), block(wiring="interpolated"), final_norm="l2"),
    "tied": decoder(block(), head={"kind": "language_model", "tied": True, "bias": True}),
    "learned": decoder(block(), embedding={"position": {"kind": "learned"}, "norm": {"kind": "layer"}}),
    "shared layers": decoder({"repeat": 3, "shared": True, "reinject": True, "blocks": [block(), block()]}),
    "key bias": decoder(
        block(mixer=ATTENTION | {"num_kv_heads": 2, "key_bias": True, "position": {"kind": "rotary"}}),
        block(mixer=ATTENTION | {"key_bias": True, "pattern": {"kind": "window", "size": 3}}),
    ),
    "two stacks in turn": decoder(
        block(),
        block() | {"adds_input_of": 0, "norm_between": True},
        block() | {"adds_input_of": 1, "norm_between": True, "weights_of": 0},
        block() | {"adds_input_of": 2, "norm_between": True, "weights_of": 1},
    ),
    "loop with an exit": decoder(
        {"repeat": 3, "shared": True, "norm_between": True, "blocks": [block(), block()]}, early_exit={"threshold": 0.7}
    ),
    "shared layers, unit length": decoder(
        block(), {"repeat": 3, "shared": True, "reinject": "unit", "blocks": [block(), block()]}
    ),
    "norms by content": wired(kind="sandwich", mixer_norm={"kind": "none"}, feedforward_post_norm={"kind": "rms"}),
    "no mixer": decoder(block(), block(mixer={"kind": "none"})),
    "mixers together": mixed(
        kind="together", parts=[ATTENTION, {"kind": "mamba2", "num_heads": 4, "head_dim": 6, "state_size": 5}]
    ),
    "value table": attending(value_embedding={}),
    "value table, gated": attending(value_embedding={"gate": {"features": 5}}, position={"kind": "rotary"}),
    "a convolution behind experts": decoder(
        block(feedforward={"kind": "together", "parts": [experts()], "scales": "learned", "convolutions": {}})
    ),
    "experts of every token": decoder(
        block(feedforward=experts(always=2, router={"kind": "sigmoid", "renormalize": True, "expert_bias": True}))
    ),
    "idle experts": decoder(
        block(feedforward=experts(idle=3, router={"kind": "softmax", "scale": 2.0, "softcap": 0.3}))
    ),
    "n-gram memory": decoder(
        block(feedforward={"kind": "ngram_memory", "rows": 17, "row_width": 3, "heads": 2, "conv_kernel": 2})
    ),
    "sparse mixer": decoder(block(feedforward=experts(router={"kind": "sparse_mixer"}))),
    "hash": decoder(block(feedforward=experts(router={"kind": "hash"}))),
    "hash, weighed": decoder(
        block(feedforward=experts(router={"kind": "hash", "affinity": "sqrt_softplus", "renormalize": True}))
    ),
    "per-layer inputs": decoder(block(), READER, block(), READER, embedding={"per_layer": {"features": 6}}),
    "streams": decoder(block(), block(), residual={"kind": "streams", "num_streams": 3, "sinkhorn_steps": 4}),
    "alternating updates": decoder(
        block(wiring={"kind": "laurel", "norm": "rms", "rank": 5}),
        READER
        | {
            "wiring": {"kind": "pre_norm", "norm": "none"},
            "feedforward": READER["feedforward"]
            | {
                "num_streams": 3,
                "active": 1,
                "input_norm": {"kind": "affine", "bias": False},
                "added_norm": "rms",
            },
        },
        block(),
        embedding={"per_layer": {"features": 6, "rows": 20}},
        residual={"kind": "altup", "num_streams": 3, "active": 1},
    ),
    "gaussian top-k": decoder(
        block(feedforward=GATED | {"activation": {"kind": "gaussian_top_k", "share": 0.7}}), block()
    ),
    "n-gram memory of streams": decoder(
        block(),
        block(
            wiring={"kind": "pre_norm", "norm": "none"},
            mixer={"kind": "none"},
            feedforward={"kind": "ngram_memory", "rows": 17, "row_width": 3, "heads": 2, "num_streams": 3},
        ),
        block(),
        residual={"kind": "gated_streams", "num_streams": 3, "rank": 5},
    ),
    "gated streams": decoder(block(), block(), residual={"kind": "gated_streams", "num_streams": 3, "rank": 5}),
    "extra rows": decoder(block(), embedding={"extra_rows": 3}),
    "norms side by side": decoder(
        block(
            wiring={"kind": "sandwich", "norm": RMS, "feedforward_norm": "none"},
            feedforward={
                "kind": "together",
                "norms": [RMS, {"kind": "none"}],
                "post_norms": [RMS, RMS],
                "parts": [
                    GATED,
                    experts(norm=RMS, router={"kind": "softmax", "norm": RMS, "scaled": True, "expert_scales": True}),
                ],
            },
        )
    ),
    "grown queries": attending(query_scale={"beta": 0.3, "length": 4, "form": "power"}, gate={"bias": True}),
    "normed sum": decoder(
        block(), block(), residual={"kind": "normed_sum", "added": "affine"}, embedding={"norm": "affine"}
    ),
    "scaled sum": decoder(block(), block(), residual={"kind": "scaled_sum"}),
    "depth attention": decoder(*3 * [block()], residual={"kind": "depth_attention", "layers_per_block": 2}),
    "depth attention, normed": decoder(
        *3 * [block()], residual={"kind": "depth_attention", "layers_per_block": 2, "norm_weight": True}
    ),
    "dense and experts": decoder(block(feedforward={"kind": "together", "parts": [GATED, experts()]})),
}
OTHERS: dict[str, spec.ModelSpec] = {
    "encoder": encoder(),
    "encoder, untied": encoder(head={"kind": "masked_language_model", "norm": {"kind": "layer"}, "tied": False}),
    "encoder, pooled": encoder(pooler=True, head={"kind": "classification", "num_classes": 3}),
    "encoder, vectors": encoder(pooler=True, head={"kind": "none"}),
    "encoder, experts choose": encoder(
        layers=[block(feedforward=experts(num_experts=4, router={"kind": "expert_choice"})), block()], final_norm=RMS
    ),
    "encoder, both ways": encoder(
        layers=[{"wiring": {"kind": "plain"}, "mixer": {"kind": "lstm", "bidirectional": True}}]
    ),
    "longformer": encoder(
        layers=[
            block(
                mixer={
                    "kind": "attention",
                    "num_heads": 4,
                    "bias": True,
                    "pattern": {"kind": "global_window", "size": 4, "global_projections": True},
                }
            )
        ]
    ),
    "bigbird": encoder(
        layers=[
            block(
                mixer={
                    "kind": "attention",
                    "num_heads": 4,
                    "pattern": {"kind": "bigbird", "block": 2, "random_blocks": 1},
                }
            )
        ]
        * 2
    ),
    "encoder-decoder": pair(),
    "encoder-decoder, two tables": pair(embedding={"shared": False}, source_vocab_size=17),
    "encoder-decoder, bridge": pair(
        encoder={"layers": [RECURRENT_PAIR]},
        decoder={
            "layers": [RECURRENT_PAIR | {"cross_attention": {"kind": "attention", "num_heads": 1, "score": "additive"}}]
        },
        state_bridge={"kind": "state"},
    ),
    "bigram": spec.parse({"kind": "ngram", **SIZES, "n": 1}),
    "n-gram": spec.parse(
        {"kind": "ngram", **SIZES, "n": 3, "hidden": [20, 16], "head": {"kind": "language_model", "tied": True}}
    ),
    "megabyte": spec.parse(
        {
            "kind": "megabyte",
            "vocab_size": 31,
            "context_length": 24,
            "patch_size": 4,
            "global_model": PATCHES,
            "local_model": PATCHES | {"d_model": 8},
        }
    ),
    "picture": spec.parse(
        PICTURE | {"final_norm": {"kind": "layer"}, "head": {"kind": "classification", "num_classes": 5}}
    ),
    "picture, pooled": spec.parse(PICTURE | {"pooler": True, "class_token": False, "head": {"kind": "none"}}),
}
ALL = DECODERS | OTHERS
