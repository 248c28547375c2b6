"""BERT and T5 in GGUF.

llama.cpp knows BERT where it makes vectors of texts, without a head for masked tokens.
"""

from archetype.convert.gguf.decoders import ATTENTION
from archetype.convert.gguf.keys import Keys, Value, check_activations, sizes, unsupported
from archetype.families.keys import expect_kind
from archetype.families.rules import weight_rules
from archetype.models.block.spec import PostNorm
from archetype.models.encoder.spec import Encoder
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.spec import ModelSpec
from archetype.parts.activation.spec import GELU, GELUTanh, ReLU
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.head.spec import NoHead
from archetype.parts.norm.spec import LayerNorm, RMSNorm
from archetype.parts.position.spec import RelativeBias

MEAN = 1  # of its ways from the tokens' vectors to a text's; a pooler, which only a first token needs, is left out
BERT_FIXED: dict[str, Value] = {"attention.causal": False, "pooling_type": MEAN}


def bert_keys(model: ModelSpec) -> Keys:
    """All keys of an encoder."""
    encoder = expect_kind(Encoder, model, "kind")
    block = encoder.layers[0]
    mixer = expect_kind(Attention, block.mixer, "layers[0].mixer")
    norm = expect_kind(LayerNorm, expect_kind(PostNorm, block.wiring, "layers[0].wiring").norm, "layers[0].wiring.norm")
    if not isinstance(encoder.head, NoHead):
        raise unsupported("head", f"a head of kind {encoder.head.kind} in bert, which is there for vectors of texts")
    # its only gelu is the approximation, which its own converter takes for BERT's exact one too
    check_activations(encoder.layers, (GELU(), GELUTanh()))
    return {
        **sizes(encoder, encoder.num_layers),
        "feed_forward_length": expect_kind(MLP, block.feedforward, "layers[0].feedforward").width(encoder.d_model),
        "attention.head_count": mixer.num_heads,
        "attention.layer_norm_epsilon": norm.eps,
        "tokenizer.ggml.token_type_count": expect_kind(Embedding, encoder.embedding, "embedding").num_token_types,
    }


BERT_RULES = weight_rules(f"""{ATTENTION}
    token_embd                       embedding.token
    position_embd                    embedding.position
    token_types                      embedding.token_type
    token_embd_norm                  embedding.norm
    blk.{{i}}.attn_output_norm       blocks.{{i}}.mixer_norm
    blk.{{i}}.ffn_{{up,down}}        blocks.{{i}}.feedforward.{{up,down}}
    blk.{{i}}.layer_output_norm      blocks.{{i}}.feedforward_norm
    cls                              pooler
""")


FARTHEST = 128  # distance that its buckets tell apart, whatever a file says


def t5_keys(model: ModelSpec) -> Keys:
    """All keys of an encoder-decoder."""
    pair = expect_kind(EncoderDecoder, model, "kind")
    block = pair.encoder.layers[0]
    mixer = expect_kind(Attention, block.mixer, "encoder.layers[0].mixer")
    position = expect_kind(RelativeBias, mixer.position, "encoder.layers[0].mixer.position")
    norm = expect_kind(RMSNorm, pair.encoder.final_norm, "encoder.final_norm")
    network = block.feedforward
    # it tells the activation by whether there is a gate
    gated = isinstance(network, GatedMLP)
    for side, stack in (("encoder", pair.encoder), ("decoder", pair.decoder)):
        check_activations(stack.layers, (GELUTanh() if gated else ReLU(),), f"{side}.layers[{{i}}]")
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
        "feed_forward_length": expect_kind(GatedMLP if gated else MLP, network, "encoder").width(pair.d_model),
        "attention.head_count": heads.num_heads,
        "attention.key_length": heads.head_dim,
        "attention.value_length": heads.head_dim,
        "attention.layer_norm_epsilon": norm.eps,
        "attention.layer_norm_rms_epsilon": norm.eps,
        "attention.relative_buckets_count": position.num_buckets,
    }


T5_RULES = weight_rules("""
    token_embd                                   embedding.token
    {enc,dec}.blk.0.attn_rel_b                   {encoder,decoder}.position_bias
    {enc,dec}.blk.{i}.attn_norm                  {encoder,decoder}.blocks.{i}.mixer_norm
    {enc,dec}.blk.{i}.attn_{q,k,v,o}             {encoder,decoder}.blocks.{i}.mixer.{q,k,v,o}
    {enc,dec}.blk.{i}.cross_attn_norm            {encoder,decoder}.blocks.{i}.cross_norm
    {enc,dec}.blk.{i}.cross_attn_{q,k,v,o}       {encoder,decoder}.blocks.{i}.cross.{q,k,v,o}
    {enc,dec}.blk.{i}.ffn_norm                   {encoder,decoder}.blocks.{i}.feedforward_norm
    {enc,dec}.blk.{i}.ffn_{gate,up,down}         {encoder,decoder}.blocks.{i}.feedforward.{gate,up,down}
    {enc,dec}.output_norm                        {encoder,decoder}.final_norm
    output                                       lm_head
""")
