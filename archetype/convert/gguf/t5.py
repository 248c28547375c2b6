"""T5 in GGUF: two stacks with their own names."""

from archetype import spec
from archetype.convert.gguf.architecture import Keys, refuse_activations, sizes, unknown
from archetype.convert.gguf.decoders import NETWORK
from archetype.families.keys import expect_kind
from archetype.families.rules import linear_rules, rule

FARTHEST = 128  # distance that its buckets tell apart, whatever a file says


def keys(model: spec.ModelSpec) -> Keys:
    """All keys of an encoder-decoder."""
    pair = expect_kind(spec.EncoderDecoder, model, "kind")
    block = pair.encoder.layers[0]
    mixer = expect_kind(spec.Attention, block.mixer, "encoder.layers[0].mixer")
    position = expect_kind(spec.RelativeBias, mixer.position, "encoder.layers[0].mixer.position")
    norm = expect_kind(spec.RMSNorm, pair.encoder.final_norm, "encoder.final_norm")
    network = block.feedforward
    # it tells the activation by whether there is a gate
    gated = isinstance(network, spec.GatedMLP)
    for side, stack in (("encoder", pair.encoder), ("decoder", pair.decoder)):
        refuse_activations(stack.layers, ("gelu_tanh" if gated else "relu",), f"{side}.layers[{{i}}]")
    if position.max_distance != FARTHEST:
        raise unknown("encoder.layers[*].mixer.position.max_distance", f"{position.max_distance} here, only {FARTHEST}")
    if len(pair.decoder.layers) > len(pair.encoder.layers):
        raise unknown("decoder.layers", "more of them than the encoder has: it remembers no more layers' keys")
    heads = mixer.sizes(pair.d_model)
    return {
        **sizes(pair, len(pair.encoder.layers)),
        "decoder_block_count": len(pair.decoder.layers),
        "feed_forward_length": expect_kind(spec.GatedMLP if gated else spec.MLP, network, "encoder").width(
            pair.d_model
        ),
        "attention.head_count": heads.num_heads,
        "attention.key_length": heads.head_dim,
        "attention.value_length": heads.head_dim,
        "attention.layer_norm_epsilon": norm.eps,
        "attention.layer_norm_rms_epsilon": norm.eps,
        "attention.relative_buckets_count": position.num_buckets,
    }


RULES = (
    rule("token_embd.weight", "embedding.token.weight"),
    rule("output.weight", "lm_head.weight"),
    *(
        found
        for hf, param in (("enc", "encoder"), ("dec", "decoder"))
        for found in (
            rule(f"{hf}.blk.0.attn_rel_b.weight", f"{param}.position_bias.weight"),
            rule(f"{hf}.output_norm.weight", f"{param}.final_norm.weight"),
            *linear_rules(
                f"{hf}.blk.{{i}}.",
                f"{param}.blocks.{{i}}.",
                [
                    *NETWORK,
                    *((f"attn_{name}", f"mixer.{name}") for name in "qkvo"),
                    *((f"cross_attn_{name}", f"cross.{name}") for name in "qkvo"),
                    ("attn_norm", "mixer_norm"),
                    ("cross_attn_norm", "cross_norm"),
                    ("ffn_norm", "feedforward_norm"),
                ],
            ),
        )
    ),
)
