"""BERT and T5 in GGUF. llama.cpp runs BERT without its language modelling head, for text embeddings."""

from operator import itemgetter
from typing import Any

from archetype.convert.gguf.keys import Shown, check_activations, unsupported
from archetype.convert.gguf.plain import plain
from archetype.families.keys import Expected, Key, Row, check_num_layers, expect_kind, head_sizes, ignored, width
from archetype.families.rules import weight_rules
from archetype.families.standard_block import changed
from archetype.families.t5 import t5
from archetype.models.encoder.spec import Encoder
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import Stack
from archetype.parts.activation.spec import GELU, GELUTanh, ReLU
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.head.spec import LanguageModelHead, NoHead
from archetype.parts.position.spec import Learned, RelativeBias

MEAN = 1  # llama.cpp's number for mean pooling
# no key says so: a tied file has no output matrix
TIED = Shown(lambda shapes: {"tied": "output.weight" not in shapes})


def as_mean(model: ModelSpec) -> ModelSpec:
    """Drop a sentence head that only computes mean pooling, since llama.cpp needs no head for that."""
    if model.head.embeds and (model.head.pooling != ("mean",) or model.head.layers):
        raise unsupported("head", "pooling other than the mean")
    return model.without_sentence_head()


def as_vectors(model: Encoder) -> Encoder:
    """Remove the pooler and unused positions, and set GELU's approximation to exact GELU, as in BERT.

    llama.cpp only has the approximation, which its converter also uses for BERT's exact GELU.
    """

    def exact(part: Any) -> Any:
        approximate = isinstance(part, MLP) and part.activation == GELUTanh()
        return part.replace(activation=GELU()) if approximate else part

    embedding = expect_kind(Embedding, model.embedding, "embedding")
    if isinstance(embedding.position, Learned):
        embedding = embedding.replace(position=Learned())  # RoBERTa's first two vectors are not written
    vectors: Encoder = plain(changed(model, feedforward=exact).replace(embedding=embedding))
    return vectors


def t5_encoder(**design: Any) -> Encoder:
    """Build the encoder of T5 as a separate model, for text embeddings."""
    pair = t5(**design)
    stack, sizes = pair.encoder, {name: getattr(pair, name) for name in ("vocab_size", "context_length", "d_model")}
    return Encoder(**sizes, layers=stack.layers, final_norm=stack.final_norm, head=NoHead())


FARTHEST = 128  # max_distance of relative positions, a constant of llama.cpp


def check_t5(model: ModelSpec) -> None:
    """Refuse field values that t5 has no key for."""
    pair = expect_kind(EncoderDecoder, model, "kind")
    _check_t5_stacks(("encoder.", pair.encoder), ("decoder.", pair.decoder))
    if len(pair.decoder.layers) > len(pair.encoder.layers):
        raise unsupported("decoder.layers", "more of them than encoder layers")


def check_t5_encoder(model: ModelSpec) -> None:
    """Refuse heads, and field values that t5encoder has no key for."""
    encoder = expect_kind(Encoder, model, "kind")
    if not isinstance(encoder.head, NoHead):
        raise unsupported("head", f"a head of kind {encoder.head.kind} in t5encoder, only embeddings")
    _check_t5_stacks(("", encoder))


def _check_t5_stacks(*stacks: tuple[str, Encoder | Stack]) -> None:
    place, first = stacks[0]
    mixer = expect_kind(Attention, first.layers[0].mixer, f"{place}layers[0].mixer")
    position = expect_kind(RelativeBias, mixer.position, f"{place}layers[0].mixer.position")
    # llama.cpp chooses the activation by whether the file has a gate
    gated = isinstance(first.layers[0].feedforward, GatedMLP)
    for side, stack in stacks:
        check_activations(stack.layers, (GELUTanh() if gated else ReLU(),), f"{side}layers[{{i}}]")
    if position.max_distance != FARTHEST:
        field = f"{place}layers[*].mixer.position.max_distance"
        raise unsupported(field, f"{position.max_distance} here, only {FARTHEST}")


def with_usual_scale(model: EncoderDecoder) -> EncoderDecoder:
    """Set the head's scale to T5's default (d_model ** -0.5 if tied). `HEAD_SCALE` folds other scales into the norm."""
    head = expect_kind(LanguageModelHead, model.head, "head")
    return model.replace(head=head.replace(scale=model.d_model**-0.5 if head.tied else 1.0))


T5_SIZES: tuple[Row, ...] = (
    Key("context_length", "context_length"),
    Key("embedding_length", "d_model"),
    Key("vocab_size", "vocab_size"),
    Key("feed_forward_length", "d_ff", path=width("block.feedforward")),
    Key("attention.head_count", "num_heads"),
    Key("attention.key_length", "head_dim"),
    Expected("attention.value_length", itemgetter("head_dim"), "values of another width", path=head_sizes("head_dim")),
    Key("attention.relative_buckets_count", "num_buckets", 32, path="block.mixer.position.num_buckets"),
    Shown(lambda shapes: {"gated": "enc.blk.0.ffn_gate.weight" in shapes}),
)
T5: tuple[Row, ...] = (
    *T5_SIZES,
    Key("block_count", "num_layers", check=check_num_layers, path=lambda model: len(model.encoder.layers)),
    Key("decoder_block_count", "num_decoder_layers", itemgetter("num_layers")),
    Key("attention.layer_norm_rms_epsilon", "eps", path="encoder.final_norm.eps"),
    ignored("attention.layer_norm_epsilon", path="encoder.final_norm.eps"),
    ignored("decoder_start_token_id"),  # of the tokenizer
    TIED,
)
T5_ENCODER: tuple[Row, ...] = (
    *T5_SIZES,
    Key("block_count", "num_layers"),
    Key("attention.layer_norm_rms_epsilon", "eps", path="final_norm.eps"),
    ignored("attention.layer_norm_epsilon", path="final_norm.eps"),
    Expected("attention.causal", False, "a causal mask", path=lambda model: False),
    Expected("pooling_type", MEAN, "only mean pooling", path=lambda model: MEAN),
)

T5_ROWS = """
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
""".splitlines()
T5_RULES = weight_rules("\n".join(T5_ROWS))
T5_ENCODER_RULES = weight_rules(
    "\n".join(
        row.replace("{enc,dec}", "enc").replace("{encoder,decoder}.", "") for row in T5_ROWS if "cross" not in row
    )
)
