"""Messages about unknown kinds, with synonyms from other libraries and papers."""

from archetype.errors import nearest
from archetype.spec.errors import cut

SYNONYMS = {
    "attention": "self_attention multi_head_attention multihead mha mqa gqa grouped_query_attention causal_attention",
    "latent": "mla latent_attention multi_head_latent_attention",
    "mamba": "ssm s6 mamba1 selective_ssm state_space",
    "gated": "glu gated_mlp swiglu geglu reglu",
    "mlp": "ffn feedforward feed_forward dense",
    "experts": "moe mixture_of_experts sparse_moe switch",
    "rms": "rmsnorm rms_norm root_mean_square",
    "layer": "layernorm layer_norm ln",
    "batch": "batchnorm batch_norm bn",
    "rotary": "rope roformer",
    "alibi": "linear_bias linear_biases",
    "relative_logits": "inkling position_bias rel_logits",
    "transformer_xl": "relative relative_keys txl xl",
    "relative_bias": "relative t5 t5_bias relative_position_bias bucketed",
    "learned": "absolute learned_absolute wpe trained",
    "sinusoidal": "sin sinusoid sincos fixed_sinusoidal",
    "linear": "position_interpolation pi",
    "dynamic": "ntk dynamic_ntk",
    "window": "sliding sliding_window swa local local_attention",
    "global_window": "longformer global",
    "full": "dense global_attention all",
    "pre_norm": "pre pre_ln prenorm pre_layernorm",
    "post_norm": "post post_ln postnorm post_layernorm",
    "sandwich": "sandwich_norm peri_ln peri_norm",
    "parallel": "parallel_residual gpt_j",
    "plain": "no_residual sequential",
    "softmax": "topk top_k",
    "masked_language_model": "mlm masked_lm",
    "language_model": "lm causal_lm lm_head",
    "classification": "classifier sequence_classification",
    "sentence_embedding": "sentence sentence_transformer embedding pooled",
    "xavier": "glorot xavier_uniform",
    "normal": "gaussian",
    "decoder": "gpt llama transformer causal decoder_only",
    "encoder": "bert encoder_only",
    "encoder_decoder": "seq2seq t5 bart",
    "vision_encoder": "vit vision image_encoder",
    "none": "no identity null absent",
}
ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "glu": "sigmoid"}


def meant_kind(name: str, kinds: "dict[str, object] | list[str]") -> tuple[str, str] | None:
    """Return the kind of a synonym, and how to write it; None for an unknown word."""
    word = name.lower().replace("-", "_").replace(" ", "_")
    kind = next((kind for kind, words in SYNONYMS.items() if kind in kinds and word in words.split()), None)
    if kind is None:
        return None
    return kind, f"{kind} with activation: {ACTIVATIONS[word]}" if word in ACTIVATIONS else kind


def nearest_kind(name: str, kinds: "dict[str, object] | list[str]") -> str:
    """Return a suggestion for an unknown kind: a synonym's kind, the most similar kind, or all kinds."""
    meant = meant_kind(name, kinds)
    return f"write {meant[1]}" if meant else nearest(name, kinds)


def unknown_kind(name: object, kinds: list[str], of: str) -> tuple[str, str]:
    """Return the cause and the remedy for an unknown kind. Either of them may list all kinds.

    Args:
        of: role of these kinds, such as norm.
    """
    remedy = nearest_kind(str(name), kinds)
    listed = "" if remedy.startswith("use one of") else f" ({', '.join(kinds)})"
    return f"{cut(name)} is not a kind of {of}{listed}", remedy


def unknown_word(name: str, kinds: list[str]) -> tuple[str, str]:
    """Return the cause and the remedy for a name that is not a registered kind."""
    # There are too many kinds to list in a message.
    lister, remedy = "`archetype explain` lists all kinds", nearest_kind(name, kinds)
    if remedy.startswith("use one of"):
        return "is not a kind of part or model", lister
    return f"is not a kind of part or model ({lister})", remedy
