"""MiniMax-Text-01 (MiniMax 2025): lightning attention, softmax attention in some layers, experts. Format: `minimax`.

Each sublayer reads a normed stream x and leaves a x + b F(x), which the next norm normalizes. This is a post norm of
x + (b / a) F(x) with eps / a^2, after a norm of the embedding.
"""

from collections.abc import Mapping
from typing import Any

from archetype.errors import CheckpointError
from archetype.families.config import Config
from archetype.families.decoder_classes import OF_SPANS
from archetype.families.family import Family
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Values, ignored, width
from archetype.families.llama import INV_FREQ, rotary_keys
from archetype.families.rules import Rule, rule, weight_rules
from archetype.models.block.spec import Block, PostNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.linear_attention.spec import FixedDecay, LinearAttention
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary
from archetype.parts.router.spec import SoftmaxRouter

FULL, LINEAR = "full_attention", "linear_attention"
KINDS = ("full_attn", "linear_attn", "mlp")  # of sublayers, in keys of their factors
LIGHTNING_EPS = 1e-6  # of the norm within lightning attention


def _rounded(number: float, digits: int = 12) -> float:
    return float(f"{number:.{digits}g}")  # so that a factor and its inverse survive being written and read


def minimax(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_experts: int,
    experts_per_token: int = 2,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    layer_types: tuple[str, ...] | None = None,
    stream_factor: float = 1.0,
    eps: float = 1e-5,
    position: Rotary = Rotary(theta=1_000_000.0),
    window: int | None = None,
    attention_dropout: float = 0.0,
    balance_loss: float = 0.001,
    tied: bool = False,
    std: float = 0.02,
    **model: Any,
) -> Decoder:
    """Build a MiniMax decoder.

    Args:
        layer_types: `full_attention` or `linear_attention` for each layer (default: in turns, the first full).
        stream_factor: factor on the stream before a sublayer's output is added.
    """
    types = layer_types or tuple(LINEAR if layer % 2 else FULL for layer in range(num_layers))
    size = None if head_dim is None or head_dim * num_heads == d_model else head_dim
    attention = Attention(
        num_heads=num_heads, num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads, head_dim=size,
        position=position, pattern=Full() if window is None else Window(size=window), dropout=attention_dropout,
    )
    experts = MixtureOfExperts(
        num_experts=num_experts, experts_per_token=experts_per_token, balance_loss=balance_loss,
        expert=GatedMLP(d_ff=d_ff, activation="silu"), router=SoftmaxRouter(renormalize=True),
    )
    norm, scale = RMSNorm(eps=_rounded(eps / stream_factor**2, 9)), _rounded(1.0 / stream_factor)

    def block(layer: int, kind: str) -> Block:
        # decays are slower in later layers
        factor = 1.0 - layer / (num_layers - 1 + 1e-5) + 1e-5
        lightning = LinearAttention(
            num_heads=num_heads, head_dim=size, feature_map="silu", value_activation="silu", scale=1.0,
            decay=FixedDecay(form="alibi", factor=factor), norm=RMSNorm(eps=LIGHTNING_EPS), norm_over="all",
            gate="sigmoid", chunk_size=256,
        )
        mixer = lightning if kind == LINEAR else attention
        return Block(wiring=PostNorm(norm=norm), mixer=mixer, feedforward=experts, residual_scale=scale)

    return Decoder(
        d_model=d_model,
        embedding=Embedding(norm=RMSNorm(eps=eps)), head=LanguageModelHead(tied=tied),
        layers=tuple(block(layer, kind) for layer, kind in enumerate(types)),
        initialization=NormalInitialization(std=std),
        **({"vocab_size": 200_064, "context_length": 131_072} | model),
    )


def _attention(model: Any) -> Attention:
    for block in model.layers:
        if isinstance(block.mixer, Attention):
            return block.mixer
    raise CheckpointError("layers[*].mixer", "no layer has attention, and the format needs one", "use another family")


def _sizes(name: str) -> Any:
    return lambda model: getattr(_attention(model).sizes(model.d_model), name)


def _read_layers(config: Config, values: Values) -> Values:
    types, count = config.get("layer_types"), values["num_layers"]
    if types is None:
        return {}
    if not isinstance(types, list) or len(types) != count or not {*map(str, types)} <= {FULL, LINEAR}:
        cause = f"does not name {FULL} or {LINEAR} for each of {count} layers"
        raise config.error("layer_types", cause, "fix the file")
    return {"layer_types": tuple(types)}


def _write_layers(model: Decoder) -> dict[str, Any]:
    return {"layer_types": [FULL if isinstance(block.mixer, Attention) else LINEAR for block in model.layers]}


def _read_factors(config: Config, values: Values) -> Values:
    pairs = [tuple(config.positive(f"{kind}_{name}_factor", 1.0) for name in ("alpha", "beta")) for kind in KINDS]
    if len({*pairs}) > 1:
        cause = "differs from those of the other sublayers, which is not supported"
        raise config.error("mlp_alpha_factor", cause, "export it with equal factors")
    alpha, beta = pairs[0]
    if beta != 1.0:
        raise config.error("mlp_beta_factor", f"{beta} is not supported", "only 1.0 is")
    return {"stream_factor": alpha}


def _write_factors(model: Decoder) -> dict[str, Any]:
    alpha = _rounded(1.0 / model.layers[0].residual_scale, 15)
    return {f"{kind}_{name}_factor": value for kind in KINDS for name, value in (("alpha", alpha), ("beta", 1.0))}


def _window(model: Any) -> int | None:
    pattern = _attention(model).pattern
    return pattern.size if isinstance(pattern, Window) else None


EXPERT = "block.feedforward.expert"
KEYS = ConfigTable(minimax, (
    ignored("output_router_logits", "block_size"),  # of training, and of how a text is cut into chunks
    Expected("router_jitter_noise", 0.0, "noise on the router's input"),
    Expected("hidden_act", "silu", "another activation", path=lambda model: "silu"),
    Key("hidden_size", "d_model", 4096),
    Key("num_attention_heads", "num_heads", 32, path=lambda model: _attention(model).num_heads),
    Key("head_dim", "head_dim", lambda values: max(1, values["d_model"] // values["num_heads"]),
        path=_sizes("head_dim")),
    Key("max_position_embeddings", "context_length", 131_072),
    rotary_keys(1_000_000.0),
    Key("num_hidden_layers", "num_layers", 32),
    Converted(_read_layers, _write_layers),
    Converted(_read_factors, _write_factors),
    Key("num_key_value_heads", "num_kv_heads", 8, path=_sizes("num_kv_heads")),
    Key("intermediate_size", "d_ff", 14_336, path=width(EXPERT)),
    Key("num_local_experts", "num_experts", 8),
    Key("num_experts_per_tok", "experts_per_token", 2),
    Key("router_aux_loss_coef", "balance_loss", 0.001),
    Key("sliding_window", "window", check=Config.optional_size, path=_window),
    Key("vocab_size", "vocab_size", 32_000),
    Key("rms_norm_eps", "eps", 1e-5, path="embedding.norm.eps"),
    Key("attention_dropout", "attention_dropout", 0.0, path=lambda model: _attention(model).dropout),
    Key("tie_word_embeddings", "tied", False),
    Key("initializer_range", "std", 0.02),
), parts={"block.feedforward": MixtureOfExperts, EXPERT: GatedMLP, "embedding.norm": RMSNorm})


def _rules(model: ModelSpec) -> tuple[Rule, ...]:
    # a layer's second norm is the first norm of the next layer
    assert isinstance(model, Decoder)
    rules = [*weight_rules("""
        model.embed_tokens                                 embedding.token
        model.layers.0.input_layernorm                     embedding.norm
        model.layers.{i}.post_attention_layernorm          blocks.{i}.mixer_norm
        model.layers.{i}.block_sparse_moe.gate             blocks.{i}.feedforward.router
        model.layers.{i}.block_sparse_moe.experts.{e}.{w1,w3,w2}.weight = blocks.{i}.feedforward.experts.{gate,up,down}
        lm_head                                            lm_head
    """)]
    for layer, block in enumerate(model.layers):
        last = layer == model.num_layers - 1
        norm = "model.norm" if last else f"model.layers.{layer + 1}.input_layernorm"
        below, mixer = f"model.layers.{layer}.self_attn", f"blocks.{layer}.mixer"
        rules.append(rule(f"{norm}.weight", f"blocks.{layer}.feedforward_norm.weight"))
        if isinstance(block.mixer, LinearAttention):
            parts = (f"{mixer}.{name}.weight" for name in "qkv")
            rules.append(rule(f"{below}.qkv_proj.weight", *parts, heads=block.mixer.num_heads))
            names = {"out_proj": "o", "output_gate": "gate", "norm": "norm"}
        else:
            names = {f"{name}_proj": name for name in "qkvo"}
        rules += [rule(f"{below}.{theirs}.weight", f"{mixer}.{ours}.weight") for theirs, ours in names.items()]
    return tuple(rules)


def _constants(model: ModelSpec) -> Mapping[str, list[float]]:
    # the decays, which files repeat
    assert isinstance(model, Decoder)
    mixers = ((layer, block.mixer) for layer, block in enumerate(model.layers))
    return {
        f"model.layers.{layer}.self_attn.slope_rate": mixer.decay.rates(mixer.num_heads)
        for layer, mixer in mixers
        if isinstance(mixer, LinearAttention) and isinstance(mixer.decay, FixedDecay)
    }


# Tables of the decay over a block, computed from `slope_rate`.
TABLES = (r".*\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)",)
# The presets are among those of linear attention: the paper rotates half of each head, the format whole heads.
FAMILY = Family("minimax", {}, Format("minimax", "MiniMaxForCausalLM", KEYS, _rules, "model.", (*INV_FREQ, *TABLES),
    class_heads=OF_SPANS, constants=_constants))
