"""BERT and T5 in GGUF.

llama.cpp knows BERT where it makes vectors of texts, without a head for masked tokens.
"""

from archetype import spec
from archetype.convert.gguf.decoders import BLOCK, LAYER, NETWORK
from archetype.convert.gguf.keys import Keys, Value, check_activations, sizes, unsupported
from archetype.families.keys import expect_kind
from archetype.families.rules import linear_rules, rule

MEAN = 1  # of its ways from the tokens' vectors to a text's; a pooler, which only a first token needs, is left out
BERT_FIXED: dict[str, Value] = {"attention.causal": False, "pooling_type": MEAN}


def bert_keys(model: spec.ModelSpec) -> Keys:
    """All keys of an encoder."""
    encoder = expect_kind(spec.Encoder, model, "kind")
    block = encoder.layers[0]
    mixer = expect_kind(spec.Attention, block.mixer, "layers[0].mixer")
    norm = expect_kind(
        spec.LayerNorm, expect_kind(spec.PostNorm, block.wiring, "layers[0].wiring").norm, "layers[0].wiring.norm"
    )
    if not isinstance(encoder.head, spec.NoHead):
        raise unsupported("head", f"a head of kind {encoder.head.kind} in bert, which is there for vectors of texts")
    # its only gelu is the approximation, which its own converter takes for BERT's exact one too
    check_activations(encoder.layers, ("gelu", "gelu_tanh"))
    return {
        **sizes(encoder, encoder.num_layers),
        "feed_forward_length": expect_kind(spec.MLP, block.feedforward, "layers[0].feedforward").width(encoder.d_model),
        "attention.head_count": mixer.num_heads,
        "attention.layer_norm_epsilon": norm.eps,
        "tokenizer.ggml.token_type_count": encoder.embedding.num_token_types,
    }


BERT_RULES = (
    rule("token_embd.weight", "embedding.token.weight"),
    rule("position_embd.weight", "embedding.position.weight"),
    rule("token_types.weight", "embedding.token_type.weight"),
    *linear_rules("", "", [("token_embd_norm", "embedding.norm"), ("cls", "pooler")]),
    *linear_rules(
        BLOCK,
        LAYER,
        [
            *((f"attn_{name}", f"mixer.{name}") for name in "qkv"),
            ("attn_output", "mixer.o"),
            ("attn_output_norm", "mixer_norm"),
            ("ffn_up", "feedforward.up"),
            ("ffn_down", "feedforward.down"),
            ("layer_output_norm", "feedforward_norm"),
        ],
    ),
)


FARTHEST = 128  # distance that its buckets tell apart, whatever a file says


def t5_keys(model: spec.ModelSpec) -> Keys:
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
        check_activations(stack.layers, ("gelu_tanh" if gated else "relu",), f"{side}.layers[{{i}}]")
    if position.max_distance != FARTHEST:
        raise unsupported(
            "encoder.layers[*].mixer.position.max_distance", f"{position.max_distance} here, only {FARTHEST}"
        )
    if len(pair.decoder.layers) > len(pair.encoder.layers):
        raise unsupported("decoder.layers", "more of them than the encoder has: it caches no more layers' keys")
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


T5_RULES = (
    rule("token_embd.weight", "embedding.token.weight"),
    rule("output.weight", "lm_head.weight"),
    *(
        stack_rule
        for hf, param in (("enc", "encoder"), ("dec", "decoder"))
        for stack_rule in (
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
