"""What is wrong with a specification is said in one line: the place, the cause, the remedy."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from archetype import spec
from archetype.errors import SpecError, SpecErrors
from archetype.spec import errors
from archetype.spec.synonyms import SYNONYMS

ATTENTION: dict[str, Any] = {"kind": "attention", "num_heads": 8}
BLOCK: dict[str, Any] = {
    "wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}},
    "mixer": ATTENTION,
    "feedforward": {"kind": "gated", "d_ff": 64, "activation": "silu"},
}
GOOD: dict[str, Any] = {
    "version": 1,
    "kind": "decoder",
    "vocab_size": 100,
    "context_length": 64,
    "d_model": 48,
    "layers": [copy.deepcopy(BLOCK) for _ in range(4)],
    "final_norm": {"kind": "rms"},
}
LAYER = ("layers", 3)
MIXER = (*LAYER, "mixer")
POSITION = (*MIXER, "position")
LLAMA3 = {
    "kind": "llama3", "factor": 8, "low_frequency_factor": 4, "high_frequency_factor": 3, "original_context_length": 64
}  # fmt: skip
YARN = {"kind": "yarn", "factor": 2, "original_context_length": 64}


def refusal(keys: tuple[str | int, ...], value: Any) -> str:
    data = copy.deepcopy(GOOD)
    branch = data
    for key in keys[:-1]:
        branch = branch.setdefault(key, {}) if isinstance(branch, dict) else branch[key]
    branch[keys[-1]] = value
    with pytest.raises(SpecError) as caught:
        spec.parse(data)
    return str(caught.value)


def test_the_good_specification_is_good() -> None:
    assert spec.parse(GOOD).num_layers == 4


UNKNOWN_KEYS = [
    (("vocab_sise",), "vocab_sise: is not a known key; did you mean vocab_size?"),
    ((*LAYER, "feed_forward"), "layers[3].feed_forward: is not a known key; did you mean feedforward?"),
    ((*MIXER, "num_kv_head"), "layers[3].mixer.num_kv_head: is not a known key; did you mean num_kv_heads?"),
    ((*LAYER, "wiring", "norm", "epsilon"),
     "layers[3].wiring.norm.epsilon: is not a known key; did you mean eps?"),
    ((*LAYER, "wiring", "shared_norm"), "layers[3].wiring.shared_norm: is not a known key; "
     "use one of kind, norm, mixer_norm, cross_attention_norm, feedforward_norm"),
    (("head", "tyed"), "head.tyed: is not a known key; did you mean tied?"),
    (("embedding", "zzz"),
     "embedding.zzz: is not a known key; use one of kind, position, scale, round_scale, num_token_types, extra_rows, "
     "norm, norm_first, per_layer, dropout, width, project_first"),
    ((7,), "7: is not a known key; use one of version, kind, name, vocab_size, context_length, "
     "d_model, embedding, layers, residual, final_norm, early_exit, head, further_tokens, initialization"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "message"), UNKNOWN_KEYS)
def test_an_unknown_key_is_refused_with_its_path_and_the_nearest_name(keys: tuple[str, ...], message: str) -> None:
    assert refusal(keys, 1) == message


IMPOSSIBLE = [
    # what does not divide, pair or fit
    ((*MIXER, "num_kv_heads"), 5, "layers[3].mixer.num_kv_heads: 5 does not divide num_heads 8; use 1, 2, 4 or 8"),
    (MIXER, ATTENTION | {"num_heads": 1, "num_kv_heads": 2},
     "layers[3].mixer.num_kv_heads: 2 does not divide num_heads 1; use 1"),
    ((*MIXER, "num_heads"), 7,
     "layers[3].mixer.num_heads: 7 does not divide d_model 48; use 4, 6, 8 or set head_dim"),
    (MIXER, ATTENTION | {"num_heads": 16, "position": {"kind": "rotary"}},
     "layers[3].mixer.head_dim: 3 features cannot be paired for rotary positions; use an even head_dim"),
    (MIXER, ATTENTION | {"head_dim": 5, "position": {"kind": "rotary"}},
     "layers[3].mixer.head_dim: 5 features cannot be paired for rotary positions; use an even head_dim"),
    (POSITION, {"kind": "rotary", "dim": 8}, "layers[3].mixer.position.dim: 8 is more than head_dim 6; use at most 6"),
    (MIXER, ATTENTION | {"head_dim": 2, "position": {"kind": "rotary", "dim": 4}},
     "layers[3].mixer.position.dim: 4 is more than head_dim 2; use at most 2"),
    (POSITION, {"kind": "rotary", "dim": 3},
     "layers[3].mixer.position.dim: 3 features cannot be paired; use an even number"),
    (POSITION, {"kind": "rotary", "scaling": LLAMA3},
     "layers[3].mixer.position.scaling.high_frequency_factor: 3.0 is below low_frequency_factor 4.0; "
     "use a larger factor (Llama 3.1 has 4 and 1)"),
    (POSITION, {"kind": "rotary", "theta": 1.0, "scaling": YARN},
     "layers[3].mixer.position.theta: 1.0 is not above 1, as yarn needs; use a theta above 1"),
    # kinds and choices
    (("kind",), "perceiver", "kind: 'perceiver' is not a kind of model; use one of decoder, encoder, "
     "encoder_decoder, megabyte, ngram, vision_encoder"),
    (("kind",), "encoder-decoder", "kind: 'encoder-decoder' is not a kind of model (decoder, encoder, "
     "encoder_decoder, megabyte, ngram, vision_encoder); did you mean encoder_decoder?"),
    ((*LAYER, "wiring", "norm", "kind"), "rmsnorm",
     "layers[3].wiring.norm: 'rmsnorm' is not a kind of norm (layer, rms, gated_rms, l2, affine, dynamic_tanh, "
     "dynamic_erf, batch, none); write rms"),
    ((*LAYER, "wiring", "norm"), {"eps": 1e-5},
     "layers[3].wiring.norm: kind is missing; add kind: NAME"),
    ((*LAYER, "wiring", "norm"), ["rms"],
     "layers[3].wiring.norm: a list is not a kind; write a kind, such as rms; `archetype explain norm` lists them"),
    (POSITION, {"kind": "rotary", "scaling": {"kind": "ntk", "factor": 2}},
     "layers[3].mixer.position.scaling: 'ntk' is not a kind of scaling (none, linear, dynamic, yarn, llama3, longrope, "
     "proportional); write dynamic"),
    ((*MIXER, "kind"), "atention", "layers[3].mixer: 'atention' is not a kind of mixer (none, attention, "
     "compressed, disentangled_attention, gated_delta_net, latent, linear_attention, mamba, mamba2, mamba3, mlstm, "
     "native_sparse, rnn, lstm, gru, rg_lru, rwkv4, rwkv7, short_convolution, together); "
     "did you mean attention?"),
    ((*MIXER, "qk_norm"), {"kind": "batch"},
     "layers[3].mixer.qk_norm: the norm 'batch' cannot be used here; use one of layer, rms, l2, affine, dynamic_tanh, "
     "dynamic_erf, none"),
    ((*MIXER, "score"), "product", "layers[3].mixer.score: 'product' is not a choice; use one of dot, additive"),
    ((*LAYER, "feedforward", "activation"), "gelu_tan",
     "layers[3].feedforward.activation: 'gelu_tan' is not a kind of activation (none, relu, gelu, gelu_tanh, silu, "
     "tanh, sigmoid, relu2, swish, situ, xielu, poly_norm, gaussian_top_k); did you mean gelu_tanh?"),
    ((*LAYER, "feedforward"),
     {"kind": "experts", "num_experts": 2, "experts_per_token": 1, "latent_norm": "l2",
      "expert": {"kind": "mlp", "d_ff": 4, "activation": "relu"}},
     "layers[3].feedforward.latent_norm: needs latent experts; use latent_width, or remove it"),
    ((*LAYER, "feedforward"),
     {"kind": "experts", "num_experts": 2, "experts_per_token": 1, "idle_output": "zero",
      "expert": {"kind": "mlp", "d_ff": 4, "activation": "relu"}},
     "layers[3].feedforward.idle_output: the model has no idle experts; remove it, or use idle: 1"),
    ((*LAYER, "feedforward"), {"kind": "gated", "d_ff": 4, "activation": "silu", "limit_after": True},
     "layers[3].feedforward.limit_after: there is no limit; remove it, or add a limit"),
    # mappings that may also be a plain value
    ((*LAYER, "feedforward", "activation"), {"kind": "swish", "beta": 0},
     "layers[3].feedforward.activation.beta: 0 is too small; use more than 0.0"),
    ((*LAYER, "feedforward", "activation"), {"kind": "swish", "bta": 1},
     "layers[3].feedforward.activation.bta: is not a known key; did you mean beta?"),
    ((*LAYER, "feedforward", "d_ff"), {"kind": "eight_thirds", "multiple": 8},
     "layers[3].feedforward.d_ff.multiple: is not a known key; did you mean multiple_of?"),
    ((*LAYER, "feedforward", "d_ff"), "big",
     "layers[3].feedforward.d_ff: 'big' is not a whole number; use a whole number"),
    ((*MIXER, "bias"), {"q": 1}, "layers[3].mixer.bias.q: 1 is neither true nor false; use true or false"),
    ((*MIXER, "bias"), {"w": True}, "layers[3].mixer.bias.w: is not a known key; use one of q, k, v, o"),
    # numbers
    (("d_model",), 0, "d_model: 0 is too small; use more than 0"),
    (("d_model",), 48.0, "d_model: 48.0 is not a whole number; use a whole number"),
    (("d_model",), "48", "d_model: '48' is not a whole number; use a whole number"),
    (("d_model",), True, "d_model: True is not a whole number; use a whole number"),
    (("d_model",), None, "d_model: None is not a whole number; use a whole number"),
    ((*MIXER, "scale"), True, "layers[3].mixer.scale: True is not a finite number; use a number"),
    ((*MIXER, "scale"), "0.5", "layers[3].mixer.scale: '0.5' is not a finite number; use a number"),
    ((*MIXER, "scale"), float("inf"), "layers[3].mixer.scale: inf is not a finite number; use a number"),
    ((*LAYER, "dropout"), 1.0, "layers[3].dropout: 1.0 is too large; use less than 1.0"),
    ((*LAYER, "dropout"), -0.5, "layers[3].dropout: -0.5 is too small; use at least 0.0"),
    (("head", "tied"), "yes", "head.tied: 'yes' is neither true nor false; use true or false"),
    (("name",), 3, "name: 3 is not text; use text"),
    # lists of layers
    (("layers",), [], "layers: is empty; add at least one item"),
    (("layers",), {"repeat": 3}, "layers: a dict is not a list; write it as [item, ...]"),
    (("layers",), [BLOCK, 3], "layers[1]: 3 is not a mapping; write it as {key: value, ...}"),
    (("layers",), [{"repeat": 3}], "layers[0]: repeats nothing; use exactly one of block and blocks"),
    (("layers",), [{"repeat": 0, "block": BLOCK}], "layers[0].repeat: 0 is not a valid number of repeats; "
     "use a whole number from 1 to 10000"),
    (("layers",), [{"repeat": 2, "block": BLOCK, "blocks": [BLOCK]}],
     "layers[0]: has both block and blocks; use exactly one of block and blocks"),
    (("layers",), [{"repeat": 2, "blocks": []}], "layers[0].blocks: is not a list of blocks; write it as [block, ...]"),
    (("layers",), [{"repeat": 2, "blok": BLOCK}],
     "layers[0].blok: is not a known key; use repeat with block or blocks"),
    (("layers",), [{"wiring": BLOCK["wiring"]}], "layers[0].mixer: is missing; set a value"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "value", "message"), IMPOSSIBLE)
def test_what_is_impossible_is_refused_with_place_cause_and_remedy(
    keys: tuple[str | int, ...], value: Any, message: str
) -> None:
    assert refusal(keys, value) == message


# Of each room of the specification: what must hold between its fields.

LATENT: dict[str, Any] = {
    "kind": "latent", "num_heads": 2, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4
}  # fmt: skip
WINDOW = {"kind": "window", "size": 4}
GLOBAL = {"kind": "global_window", "size": 4}
RELATIVE = {"kind": "relative_bias"}
EXPERTS: dict[str, Any] = {
    "kind": "experts", "num_experts": 8, "experts_per_token": 3,
    "expert": {"kind": "mlp", "d_ff": 8, "activation": "relu"},
}  # fmt: skip
FEEDFORWARD = (*LAYER, "feedforward")
DYNAMIC = {"kind": "dynamic", "factor": 2, "original_context_length": 64}


def attention(**fields: Any) -> dict[str, Any]:
    return ATTENTION | fields


DISAGREEING = [
    # attention
    (MIXER, attention(score="additive", scale=1.0),
     "layers[3].mixer.scale: does not apply to additive scores; remove scale, or use score dot"),
    (MIXER, attention(score="additive", softcap=1.0),
     "layers[3].mixer.softcap: does not apply to additive scores; remove softcap, or use score dot"),
    (MIXER, attention(score="additive", position={"kind": "rotary"}),
     "layers[3].mixer.position: rotary positions only affect dot products of queries and keys; "
     "use relative_bias or alibi, or score dot"),
    (MIXER, attention(score="additive", pattern=WINDOW),
     "layers[3].mixer.pattern: additive scores support only the full pattern; use pattern full, or score dot"),
    (MIXER, attention(position={"kind": "alibi"}, pattern=GLOBAL),
     "layers[3].mixer.position: alibi suppresses distant tokens, and global tokens must be visible everywhere; "
     "use learned positions in the embedding, or pattern window"),
    (MIXER, attention(position={"kind": "alibi"}, pattern={"kind": "bigbird"}),
     "layers[3].mixer.position: alibi suppresses distant tokens, and global tokens must be visible everywhere; "
     "use learned positions in the embedding, or pattern window"),
    (MIXER, attention(position={"kind": "rotary", "scaling": DYNAMIC}, pattern=GLOBAL | {"global_projections": True}),
     "layers[3].mixer.position.scaling: scaling by sequence length does not support global projections; "
     "use another scaling"),
    (MIXER, attention(pattern={"kind": "bigbird"}),
     "layers[3].mixer.pattern: bigbird's random and last blocks attend to later tokens, which a decoder cannot"
     "; use strided, fixed or window, or an encoder"),
    (MIXER, attention(pattern=GLOBAL | {"global_projections": True}),
     "layers[3].mixer.pattern.global_projections: a decoder's first tokens cannot attend to later ones; "
     "remove it, or use an encoder"),
    # patterns
    (MIXER, attention(pattern={"kind": "fixed", "stride": 4, "num_summary": 5}),
     "layers[3].mixer.pattern.num_summary: 5 is more than stride 4; use at most 4"),
    (MIXER, attention(pattern={"kind": "bigbird", "window_blocks": 2}),
     "layers[3].mixer.pattern.window_blocks: 2 blocks have no center; use an odd number"),
    (MIXER, attention(pattern={"kind": "bigbird", "seed": -1}),
     "layers[3].mixer.pattern.seed: -1 is too small; use at least 0"),
    (MIXER, attention(pattern={"kind": "windows", "size": 4}),
     "layers[3].mixer.pattern: 'windows' is not a kind of pattern (full, window, chunked, block_causal, strided, "
      "fixed, global_window, bigbird); did you mean window?"),
    # positions
    (MIXER, attention(position=RELATIVE | {"num_buckets": 6}),
     "layers[3].mixer.position.num_buckets: 6 cannot be halved twice; use a multiple of 4"),
    (MIXER, attention(position=RELATIVE | {"num_buckets": 16, "max_distance": 8}),
     "layers[3].mixer.position.max_distance: 8 leaves no distances for the logarithmic buckets; use more than 8"),
    (("layers",), [BLOCK | {"mixer": attention(position=RELATIVE | {"num_buckets": n})} for n in (16, 16, 32)],
     "layers: all layers share one table, and {'kind': 'relative_bias', 'num_buckets': 16} for 8 heads differs from "
     "{'kind': 'relative_bias'} for 8; make them equal"),
    (("layers",), [BLOCK | {"mixer": attention(position=RELATIVE, num_heads=h)} for h in (8, 4)],
     "layers: all layers share one table, and {'kind': 'relative_bias'} for 8 heads differs from "
     "{'kind': 'relative_bias'} for 4; make them equal"),
    # latent attention
    (MIXER, LATENT | {"qk_rope_head_dim": 3},
     "layers[3].mixer.qk_rope_head_dim: 3 features cannot be paired; use an even number"),
    (MIXER, LATENT | {"position": {"kind": "rotary", "dim": 2}},
     "layers[3].mixer.position.dim: all qk_rope_head_dim features are rotated; use qk_rope_head_dim"),
    (MIXER, LATENT | {"position": {"kind": "rotary", "scaling": DYNAMIC}},
     "layers[3].mixer.position.scaling: dynamic scaling depends on the sequence length, which is not supported here; "
     "use yarn, as DeepSeek-V2 does, or another scaling"),
    (MIXER, LATENT | {"pattern": {"kind": "chunked", "size": 4}},
     "layers[3].mixer.pattern: latents are read in full or within a window; use full or window"),
    (MIXER, LATENT | {"pattern": {"kind": "window", "size": 4},
                      "index": {"kind": "lightning", "num_heads": 2, "head_dim": 4, "top_k": 2}},
     "layers[3].mixer.pattern: an index selects among all keys, which a window does not keep; use full, or no index"),
    # recurrent mixers
    *((MIXER, {"kind": kind, "bidirectional": True},
       "layers[3].mixer.bidirectional: a decoder must not read from the end; remove it, or use an encoder")
      for kind in ("rnn", "lstm", "gru")),
    (MIXER, {"kind": "mamba", "dt_min": 0.1, "dt_max": 0.01},
     "layers[3].mixer.dt_max: 0.01 is below dt_min 0.1; use a larger dt_max"),
    # feed-forward parts
    (FEEDFORWARD, EXPERTS | {"experts_per_token": 9},
     "layers[3].feedforward.experts_per_token: 9 is more than num_experts 8; use at most 8"),
    (FEEDFORWARD, EXPERTS | {"groups": {"num_groups": 3, "groups_per_token": 1}},
     "layers[3].feedforward.groups.num_groups: 3 does not divide num_experts 8; use a divisor"),
    (FEEDFORWARD, EXPERTS | {"groups": {"num_groups": 4, "groups_per_token": 5}},
     "layers[3].feedforward.groups.groups_per_token: 5 is more than num_groups 4; use at most 4"),
    (FEEDFORWARD, EXPERTS | {"groups": {"num_groups": 4, "groups_per_token": 1}},
     "layers[3].feedforward.experts_per_token: 3 experts do not fit into 1 groups of 2; "
     "use fewer experts or more groups"),
    ((*FEEDFORWARD,), EXPERTS | {"expert": EXPERTS},
     "layers[3].feedforward.expert: 'experts' is not a kind of expert; use one of mlp, gated"),
    (FEEDFORWARD, EXPERTS | {"balance_loss": -0.1},
     "layers[3].feedforward.balance_loss: -0.1 is too small; use at least 0.0"),
    # blocks
    (LAYER, {"wiring": {"kind": "parallel", "norm": {"kind": "rms"}}, "mixer": ATTENTION},
     "layers[3].wiring: parallel wiring needs a feed-forward part; add a feed-forward part, or use pre_norm"),
    (LAYER, BLOCK | {"wiring": {"kind": "parallel", "norm": {"kind": "rms"}}, "cross_attention": ATTENTION},
     "layers[3].wiring: parallel wiring does not support cross-attention; use pre_norm or post_norm"),
    (LAYER, BLOCK | {"cross_attention": attention(position={"kind": "alibi"})},
     "layers[3].cross_attention.position: source and target have no common positions; remove it"),
    (LAYER, BLOCK | {"cross_attention": attention(pattern=WINDOW)},
     "layers[3].cross_attention.pattern: cross-attention always attends to the whole source; remove it"),
    (LAYER, BLOCK | {"cross_attention": ATTENTION},
     "layers[3].cross_attention: the model has no encoder; remove it, or use kind encoder_decoder"),
    ((*LAYER, "wiring"), {"kind": "plain", "norm": {"kind": "rms"}},
     "layers[3].wiring.norm: is not a known key; use one of kind"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "value", "message"), DISAGREEING)
def test_fields_that_disagree_are_refused(keys: tuple[str | int, ...], value: Any, message: str) -> None:
    assert refusal(keys, value) == message


# Of each kind of model.

ENCODER = {key: value for key, value in GOOD.items() if key != "kind"} | {"kind": "encoder"}
RECURRENT = {"wiring": {"kind": "plain"}, "mixer": {"kind": "lstm"}}


def side(*layers: Any, **more: Any) -> dict[str, Any]:
    """One side of a model that has two."""
    return {"layers": list(layers), "final_norm": {"kind": "none"}} | more


PAIR: dict[str, Any] = {
    "kind": "encoder_decoder", "vocab_size": 100, "context_length": 64, "d_model": 48,
    "encoder": side(BLOCK), "decoder": side(BLOCK, BLOCK | {"cross_attention": ATTENTION}),
}  # fmt: skip
NGRAM = {"kind": "ngram", "vocab_size": 100, "context_length": 64, "n": 3, "d_model": 48}
MEGABYTE: dict[str, Any] = {
    "kind": "megabyte", "context_length": 64, "patch_size": 8,
    "global_model": side(BLOCK, d_model=48), "local_model": side(BLOCK, d_model=16),
}  # fmt: skip
VISION = {
    "kind": "vision_encoder", "image_size": 32, "patch_size": 8, "d_model": 48, **side(BLOCK),
    "head": {"kind": "none"},
}  # fmt: skip
MODELS = {
    "decoder": GOOD, "encoder": ENCODER, "encoder_decoder": PAIR, "ngram": NGRAM, "megabyte": MEGABYTE,
    "vision_encoder": VISION,
}  # fmt: skip
SINUSOIDAL = {"position": {"kind": "sinusoidal"}}
ONE_HEAD = [BLOCK | {"mixer": attention(num_heads=1)}]
BRIDGE = {"kind": "state"}
RMS = {"kind": "rms"}
UNREAD = "the decoder reads only the encoder's states, so this is never trained"
OR_CROSS = "or add cross_attention to a block of the decoder"
UNLIKE = "a state bridge needs the same recurrent mixer in each layer of both stacks"


def bridged(encoder: list[Any], decoder: list[Any]) -> dict[str, Any]:
    return {"state_bridge": BRIDGE, "encoder": side(*encoder), "decoder": side(*decoder)}


IN_MODELS = [
    *(({"kind": kind, "d_model": 9, "embedding": SINUSOIDAL, "layers": ONE_HEAD},
       "d_model: 9 features cannot be paired for sinusoidal positions; use an even number")
      for kind in ("decoder", "encoder", "vision_encoder")),
    ({"kind": "encoder_decoder", "d_model": 9, "embedding": SINUSOIDAL, "encoder": side(*ONE_HEAD),
      "decoder": side(ONE_HEAD[0] | {"cross_attention": attention(num_heads=3)})},
     "d_model: 9 features cannot be paired for sinusoidal positions; use an even number"),
    # encoders
    ({"kind": "encoder", "d_model": 9, "layers": [RECURRENT | {"mixer": {"kind": "gru", "bidirectional": True}}]},
     "layers[0].mixer.bidirectional: 9 features cannot be halved; use an even d_model"),
    ({"kind": "encoder", "layers": [BLOCK | {"cross_attention": ATTENTION}]},
     "layers[0].cross_attention: the model has no encoder; remove it, or use kind encoder_decoder"),
    ({"kind": "encoder", "embedding": {"num_token_types": -1}},
     "embedding.num_token_types: -1 is too small; use at least 0"),
    ({"kind": "encoder", "head": {"kind": "language_models"}},
     "head: 'language_models' is not a kind of head (language_model, masked_language_model, masked_logits, "
     "classification, token_classification, span, none, sentence_embedding); did you mean language_model?"),
    ({"kind": "encoder", "head": {"kind": "classification"}}, "head.num_classes: is missing; set a value"),
    # encoders with decoders
    ({"kind": "encoder_decoder", "encoder": side(BLOCK, BLOCK | {"cross_attention": ATTENTION})},
     "encoder.layers[1].cross_attention: the model has no encoder; remove it, or use kind encoder_decoder"),
    ({"kind": "encoder_decoder", "decoder": side(BLOCK, BLOCK | {"cross_attention": attention(num_heads=7)})},
     "decoder.layers[1].cross_attention.num_heads: 7 does not divide d_model 48; use 4, 6, 8 or set head_dim"),
    ({"kind": "encoder_decoder", "encoder": side(BLOCK | {"mixer": attention(num_heads=7)})},
     "encoder.layers[0].mixer.num_heads: 7 does not divide d_model 48; use 4, 6, 8 or set head_dim"),
    ({"kind": "encoder_decoder",
      "decoder": side(BLOCK | {"cross_attention": ATTENTION, "mixer": attention(pattern={"kind": "bigbird"})})},
     "decoder.layers[0].mixer.pattern: bigbird's random and last blocks attend to later tokens, which a decoder cannot"
     "; use strided, fixed or window, or an encoder"),
    ({"kind": "encoder_decoder",
      "encoder": side(*(BLOCK | {"mixer": attention(position=RELATIVE, num_heads=h)} for h in (8, 4)))},
     "encoder.layers: all layers share one table, and {'kind': 'relative_bias'} for 8 heads differs from "
     "{'kind': 'relative_bias'} for 4; make them equal"),
    ({"kind": "encoder_decoder", "source_vocab_size": 50},
     "source_vocab_size: a shared table has one vocabulary; remove it, or use shared: false"),
    ({"kind": "encoder_decoder", "decoder": side(BLOCK)},
     "decoder.layers: no decoder block reads the source; "
     "add cross_attention to a block, or set state_bridge: {kind: state} for recurrent stacks"),
    *(({"kind": "encoder_decoder"} | bridged(*sides),
       f"state_bridge: {UNLIKE}; use the same layers in both stacks, or cross-attention")
      for sides in (
          ([BLOCK], [BLOCK]),
          ([RECURRENT], [RECURRENT, RECURRENT]),
          ([RECURRENT], [RECURRENT | {"mixer": {"kind": "gru"}}]),
          ([RECURRENT | {"mixer": {"kind": "mamba"}}], [RECURRENT | {"mixer": {"kind": "mamba"}}]),
      )),
    # what only the encoder's vectors pass is read by nobody where a bridge hands over states alone
    ({"kind": "encoder_decoder"} | bridged([RECURRENT], [RECURRENT]) | {"encoder": side(RECURRENT, final_norm=RMS)},
     f"encoder.final_norm: {UNREAD}; use kind none, {OR_CROSS}"),
    ({"kind": "encoder_decoder"} | bridged([RECURRENT | {"feedforward": BLOCK["feedforward"]}], [RECURRENT]),
     f"encoder.layers[0].feedforward: {UNREAD}; remove it, {OR_CROSS}"),
    *(({"kind": "encoder_decoder"} | bridged([RECURRENT, RECURRENT | {"wiring": {"kind": kind, "norm": RMS}}],
                                             [RECURRENT, RECURRENT]),
       f"encoder.layers[1].wiring.norm: {UNREAD}; use plain or pre_norm, {OR_CROSS}")
      for kind in ("post_norm", "output_norm", "sandwich")),
    # the end of a stack
    *(({"kind": kind, "layers": [BLOCK | {"wiring": {"kind": wiring, "norm": RMS}}]},
       "final_norm: is missing, and nothing else normalizes the output of the stack; "
       "add a norm, such as {kind: rms}, or write {kind: none}")
      for kind in ("decoder", "encoder", "vision_encoder") for wiring in ("pre_norm", "parallel", "sandwich")),
    ({"kind": "encoder_decoder", "encoder": {"layers": [BLOCK]}},
     "encoder.final_norm: is missing, and nothing else normalizes the output of the stack; "
     "add a norm, such as {kind: rms}, or write {kind: none}"),
    # others
    ({"kind": "ngram", "head": {"tied": True}},
     "head.tied: the head reads 144 features, but the embedding has 48; "
     "make the last entry of hidden 48, or remove tied"),
    ({"kind": "ngram", "head": {"tied": True}, "hidden": [48, 50]},
     "head.tied: the head reads 50 features, but the embedding has 48; "
     "make the last entry of hidden 48, or remove tied"),
    ({"kind": "megabyte", "global_model": side(*ONE_HEAD, d_model=44)},
     "global_model.d_model: patch_size 8 does not divide 44; use a multiple, such as 48"),
    ({"kind": "megabyte", "context_length": 65},
     "context_length: patch_size 8 does not divide 65; use a multiple, such as 72"),
    ({"kind": "megabyte", "local_model": side(BLOCK, d_model=15)},
     "local_model.layers[0].mixer.num_heads: 8 does not divide d_model 15; use 1, 3, 5 or set head_dim"),
    ({"kind": "megabyte", "local_model": {"d_model": 16, "layers": [RECURRENT | {"mixer": {"kind": "rnn",
      "bidirectional": True}}]}},
     "local_model.layers[0].mixer.bidirectional: a decoder must not read from the end; "
     "remove it, or use an encoder"),
    ({"kind": "vision_encoder", "patch_size": 5}, "patch_size: 5 does not divide image_size 32; use a divisor"),
    ({"kind": "vision_encoder", "head": {"kind": "masked_language_model"}},
     "head: the head 'masked_language_model' cannot be used here; use one of classification, none"),
]  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_the_good_model_of_each_kind_is_good(kind: str) -> None:
    assert spec.parse(MODELS[kind]).dump()["kind"] == kind


@pytest.mark.parametrize(("fields", "message"), IN_MODELS)
def test_what_a_model_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(
            {key: value for key, value in MODELS[fields["kind"]].items() if key not in dropped(message)} | fields
        )
    assert str(caught.value) == message


def dropped(message: str) -> str:
    """The key that is left out of a good model to get this message."""
    return "final_norm" if message.startswith("final_norm: is missing") else ""


def without(left_out: str, data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != left_out}


def test_a_final_norm_is_left_out_where_it_is_said_or_not_needed() -> None:
    """What is said stays said: a file, a copy and a fingerprint."""
    said = spec.parse(GOOD | {"final_norm": {"kind": "none"}})
    assert said.dump()["final_norm"] == {"kind": "none"}
    assert spec.parse(said.dump()) == said == said.replace(name="")
    post = [BLOCK | {"wiring": {"kind": "post_norm", "norm": RMS}}]
    assert (
        "final_norm" not in spec.parse({k: v for k, v in GOOD.items() if k != "final_norm"} | {"layers": post}).dump()
    )
    assert "final_norm" not in spec.parse(GOOD | {"layers": post, "final_norm": {"kind": "none"}}).dump()


def test_a_single_expert_is_weighed_by_its_affinity() -> None:
    """Renormalized, its weight would be 1 whatever the router says."""
    experts = {"kind": "experts", "num_experts": 4, "expert": {"kind": "mlp", "d_ff": 8, "activation": "relu"}}
    read = spec.parse(GOOD | {"layers": [BLOCK | {"feedforward": experts | {"experts_per_token": k}} for k in (1, 2)]})
    assert [block.feedforward.router.renormalize for block in read.layers] == [False, True]
    assert spec.parse(read.dump()) == read
    said = experts | {"experts_per_token": 1, "router": {"kind": "softmax", "renormalize": True}}
    published = spec.parse(GOOD | {"layers": [BLOCK | {"feedforward": said}]})
    assert published.layers[0].feedforward.router.renormalize and spec.parse(published.dump()) == published


HUGE = [
    (("d_model",), 10**9, "d_model: 1000000000 is too large; use at most 1048576"),
    (("vocab_size",), 10**9, "vocab_size: 1000000000 is too large; use at most 16777216"),
    (("context_length",), 10**10, "context_length: 10000000000 is too large; use at most 2147483648"),
    ((*MIXER, "num_heads"), 10**9, "layers[3].mixer.num_heads: 1000000000 is too large; use at most 1048576"),
    ((*MIXER, "head_dim"), 10**9, "layers[3].mixer.head_dim: 1000000000 is too large; use at most 1048576"),
    ((*LAYER, "feedforward", "d_ff"), 10**9,
     "layers[3].feedforward.d_ff: 1000000000 is too large; use at most 16777216"),
    (("layers",), [{"repeat": 10**9, "block": BLOCK}],
     "layers[0].repeat: 1000000000 is not a valid number of repeats; use a whole number from 1 to 10000"),
    (("layers",), [{"repeat": 10_000, "blocks": [BLOCK, BLOCK]}],
     "layers[0].repeat: the stack has more than 10000 layers; use fewer layers"),
    (("layers",), [{"repeat": 10_000, "block": BLOCK}, BLOCK],
     "layers[1]: the stack has more than 10000 layers; use fewer layers"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "value", "message"), HUGE)
def test_a_size_beyond_any_model_is_refused(keys: tuple[str | int, ...], value: Any, message: str) -> None:
    assert refusal(keys, value) == message


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_schema_version_is_refused(version: Any) -> None:
    message = f"version: schema version {version!r} is unknown; this version of Archetype reads version 1"
    assert refusal(("version",), version) == message


@pytest.mark.parametrize("data", [None, [], "llama", 3])
def test_what_is_no_mapping_is_refused(data: Any) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(data)
    kind = type(data).__name__
    assert str(caught.value) == f"a specification is a mapping, not {kind}; write it as key: value lines"


def test_a_changed_copy_is_checked_anew() -> None:
    with pytest.raises(SpecError, match=r"^num_kv_heads: 3 does not divide num_heads 8; use 1, 2, 4 or 8$"):
        spec.Attention(num_heads=8).replace(num_kv_heads=3)


def test_nothing_in_a_specification_can_be_set() -> None:
    with pytest.raises(ValueError, match="frozen"):
        spec.Attention(num_heads=8).num_heads = 4  # type: ignore[misc]


def test_a_word_stands_for_its_kind() -> None:
    """Wherever a kind may stand: of open sets, and of unions."""
    words = {"position": "rotary", "qk_norm": "rms", "pattern": "full"}
    mappings = {field: {"kind": kind} for field, kind in words.items()}
    for initialization, scaling in (("xavier", "none"), ({"kind": "xavier"}, {"kind": "none"})):
        read = [
            spec.parse(GOOD | {"initialization": initialization, "layers": [BLOCK | {"mixer": ATTENTION | fields}]})
            for fields in (words, mappings)
        ]
        assert read[0] == read[1]
        rotary = {"position": {"kind": "rotary", "scaling": scaling}}
        assert spec.parse(GOOD | {"layers": [BLOCK | {"mixer": ATTENTION | rotary}]}).layers[0].mixer.position.scaling
    encoder = spec.parse(ENCODER | {"head": "none", "layers": [BLOCK | {"mixer": "gru", "feedforward": "none"}]})
    assert (encoder.head, encoder.layers[0].mixer) == (spec.NoHead(), spec.GRU())
    for field in ("wiring", "mixer"):
        assert refusal((*LAYER, field), "pre_norm" if field == "wiring" else "attention") in (
            "layers[3].wiring: pre_norm needs norm; write {kind: pre_norm, norm: rms}",
            "layers[3].mixer: attention needs num_heads; write {kind: attention, num_heads: 8}",
        )


USUAL_NAMES = [
    ((*LAYER, "feedforward"), "moe", "experts"),
    ((*LAYER, "feedforward"), "swiglu", "gated with activation: silu"),
    ((*LAYER, "feedforward"), "FFN", "mlp"),
    (MIXER, "gqa", "attention"),
    (MIXER, "MLA", "latent"),
    (POSITION, "rope", "rotary"),
    ((*MIXER, "pattern"), "sliding-window", "window"),
    ((*LAYER, "wiring"), "pre_ln", "pre_norm"),
    ((*LAYER, "wiring", "norm"), "layernorm", "layer"),
    (("final_norm",), "RMSNorm", "rms"),
    (("embedding", "position"), "absolute", "learned"),
    (("initialization",), "glorot", "xavier"),
]


def test_usual_names_of_kinds_name_the_right_one() -> None:
    for keys, name, kind in USUAL_NAMES:
        for value in (name, {"kind": name}):
            cause, _, remedy = refusal(keys, value).rpartition("; ")
            assert cause.startswith(f"{errors.path(keys)}: {name!r} is not a kind of ") and remedy == f"write {kind}"
            assert kind.split()[0] in cause


def test_every_usual_name_means_a_kind_that_there_is() -> None:
    """And none of them is a kind itself."""
    kinds = {kind for role in spec.Part.__subclasses__() for kind in role.kinds} | set(MODELS)
    unions = (spec.RotaryScaling, spec.Initialization, spec.EncoderHead, spec.Query)
    kinds |= {cls.model_fields["kind"].default for union in unions for cls in get_args(get_args(union)[0])}
    assert SYNONYMS.keys() <= kinds | {"language_model"}
    assert all(len(words.split()) == len(set(words.split())) for words in SYNONYMS.values())


def test_all_mistakes_of_a_file_are_said_at_once() -> None:
    """A line each; of a block that is repeated, once."""
    wrong = BLOCK | {"mixer": {"kind": "attention", "num_heads": -1, "scal": 2}, "feedforward": {"kind": "moe", "d": 1}}
    data = {key: value for key, value in GOOD.items() if key != "vocab_size"}
    data |= {"layers": [{"repeat": 30, "block": wrong}, BLOCK | {"dropout": 1}], "vocab_sise": 9, "head": {"tied": "x"}}
    with pytest.raises(SpecErrors) as caught:
        spec.parse(data)
    assert sorted(str(caught.value).split("\n")) == [
        "head.tied: 'x' is neither true nor false; use true or false",
        "layers[0].feedforward: 'moe' is not a kind of feed forward (channel_mixing, experts, mlp, gated, none, "
        "ngram_embedding, ngram_memory, per_layer_input, together); write experts",
        "layers[0].mixer.num_heads: -1 is too small; use more than 0",
        "layers[0].mixer.scal: is not a known key; did you mean scale?",
        "layers[30].dropout: 1 is too large; use less than 1.0",
        "vocab_sise: is not a known key; did you mean vocab_size?",
    ]
    assert str(caught.value.at("a.yaml")).count("a.yaml: ") == 6
    assert pickle.loads(pickle.dumps(caught.value)).errors[0].place == caught.value.place
    many = [BLOCK | {f"key{number}": 1} for number in range(50)]
    lines = refusal(("layers",), many).split("\n")
    assert (len(lines), lines[-1]) == (21, "and 30 more mistakes")


JUNK = [
    None,
    True,
    -1,
    10**30,
    1.5,
    float("nan"),
    "x" * 5000,
    b"x",
    [],
    [[]],
    {},
    {"kind": 3},
    {"kind": "x" * 400},
    {3: 4},
]
PYDANTIC = ("Input should", "Value error", "Field required", "Extra inputs", "valid string", "Keys should", "unable to")


def places(data: Any) -> Iterator[tuple[str | int, ...]]:
    """Every place of a specification."""
    for key in data if isinstance(data, dict) else range(len(data)):
        yield (key,)
        if isinstance(data[key], dict | list):
            yield from ((key, *inner) for inner in places(data[key]))


def test_no_sentence_is_pydantics_and_no_line_is_long() -> None:
    """Junk of every type in every place of a specification with every default written out."""
    full = spec.parse(GOOD).dump(full=True) | {"layers": [spec.parse(GOOD).layers[0].dump(full=True)]}
    refused = 0
    for keys in places(full):
        for value in JUNK:
            data = copy.deepcopy(full)
            branch = data
            for key in keys[:-1]:
                branch = branch[key]
            branch[keys[-1]] = value
            try:
                spec.parse(data)
            except SpecError as error:
                refused += 1
                lines = str(error).split("\n")
                assert max(map(len, lines)) <= 300, lines
                assert not any(words in line for words in PYDANTIC for line in lines), lines
    assert refused > 500


@pytest.mark.parametrize("kind", ["plain", "pre_norm"])
def test_a_wiring_that_normalizes_no_output_stands_before_a_bridge(kind: str) -> None:
    """What the message above tells: the norm of the first is of nothing, and that of the second is read."""
    last = RECURRENT | {"wiring": {"kind": kind} | ({"norm": RMS} if kind == "pre_norm" else {})}
    model = spec.parse(MODELS["encoder_decoder"] | bridged([RECURRENT, last], [RECURRENT, RECURRENT]))
    assert model.encoder.layers[1].wiring.dump()["kind"] == kind  # type: ignore[union-attr]
