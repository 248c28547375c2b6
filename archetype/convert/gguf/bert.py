"""BERT in GGUF, where it makes vectors of texts: llama.cpp knows no head that names hidden tokens."""

from archetype import spec
from archetype.convert.gguf.architecture import Keys, Value, refuse_activations, sizes, unknown
from archetype.convert.gguf.decoders import BLOCK, LAYER
from archetype.families.keys import expect_kind
from archetype.families.rules import linear_rules, rule

MEAN = 1  # of its ways from the tokens' vectors to a text's; a pooler, which only a first token needs, is left out
FIXED: dict[str, Value] = {"attention.causal": False, "pooling_type": MEAN}


def keys(model: spec.ModelSpec) -> Keys:
    """All keys of an encoder."""
    encoder = expect_kind(spec.Encoder, model, "kind")
    block = encoder.layers[0]
    mixer = expect_kind(spec.Attention, block.mixer, "layers[0].mixer")
    norm = expect_kind(
        spec.LayerNorm, expect_kind(spec.PostNorm, block.wiring, "layers[0].wiring").norm, "layers[0].wiring.norm"
    )
    if not isinstance(encoder.head, spec.NoHead):
        raise unknown("head", f"a head of kind {encoder.head.kind} in bert, which is there for vectors of texts")
    # its only gelu is the approximation, which its own converter takes for BERT's exact one too
    refuse_activations(encoder.layers, ("gelu", "gelu_tanh"))
    return {
        **sizes(encoder, encoder.num_layers),
        "feed_forward_length": expect_kind(spec.MLP, block.feedforward, "layers[0].feedforward").width(encoder.d_model),
        "attention.head_count": mixer.num_heads,
        "attention.layer_norm_epsilon": norm.eps,
        "tokenizer.ggml.token_type_count": encoder.embedding.num_token_types,
    }


RULES = (
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
