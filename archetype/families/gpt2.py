"""GPT-2 (Radford 2019). Format: transformers' `gpt2`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_GPT
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Expected, Key, ignored
from archetype.families.rules import weight_rules
from archetype.families.standard_block import standard_decoder
from archetype.models.block.spec import PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import GPT2Initialization
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import MLP
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Learned
from archetype.roles.activation import Activation


def gpt2(
    *,
    eps: float = 1e-5,
    activation: Activation | str = "gelu_tanh",
    embedding_dropout: float = 0.0,
    std: float = 0.02,
    **design: Any,
) -> Decoder:
    """Build a GPT-2 decoder. `design` takes the arguments of `standard_decoder`."""
    embedding = Embedding(position=Learned(), dropout=embedding_dropout)
    return standard_decoder(
        norm=LayerNorm(eps=eps),
        activation=activation,
        model={"embedding": embedding, "initialization": GPT2Initialization(std=std)},
        **{"vocab_size": 50_257, "context_length": 1024} | design,
    )


KEYS = ConfigTable(gpt2, (
    Expected("scale_attn_by_inverse_layer_idx", False, "attention scaled by layer"),
    Expected("add_cross_attention", False, "cross-attention"),
    # a former name of n_positions, a setting of computation, and settings of other heads
    ignored("n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
        "summary_proj_to_labels", "summary_first_dropout"),
    Key("n_embd", "d_model", 768),
    Key("n_layer", "num_layers", 12),
    Key("n_head", "num_heads", 12),
    Key("vocab_size", "vocab_size", 50_257),
    Key("n_positions", "context_length", 1024),
    Key("n_inner", "d_ff", lambda values: 4 * values["d_model"]),
    Key("activation_function", "activation", "gelu_new"),
    Key("layer_norm_epsilon", "eps", 1e-5, path="block.wiring.norm.eps"),
    # false: scores are not divided by sqrt(head_dim)
    Key("scale_attn_weights", "scale", True, check=Config.flag, decode=lambda scaled, _: None if scaled else 1.0,
        encode=lambda scale: scale is None),
    Key("tie_word_embeddings", "tied", True),
    Key("embd_pdrop", "embedding_dropout", 0.1, check=Config.rate, path="embedding.dropout"),
    Key("attn_pdrop", "attention_dropout", 0.1),
    Key("resid_pdrop", "dropout", 0.1),
    Key("initializer_range", "std", 0.02),
), parts={
    "block.wiring": PreNorm,
    "block.wiring.norm": LayerNorm,
    "block.mixer": Attention,
    "block.feedforward": MLP,
})


RULES = (
    *weight_rules("""
        transformer.{wte,wpe}              embedding.{token,position}
        transformer.h.{i}.{ln_1,ln_2}      blocks.{i}.{mixer_norm,feedforward_norm}
        transformer.ln_f                   final_norm
        lm_head                            lm_head
    """),
    # OpenAI's code stores matrices as (inputs, outputs), and fuses q, k and v
    *weight_rules("""
        transformer.h.{i}.attn.c_attn      blocks.{i}.mixer.{q,k,v}
        transformer.h.{i}.attn.c_proj      blocks.{i}.mixer.o
        transformer.h.{i}.mlp.{c_fc,c_proj}   blocks.{i}.feedforward.{up,down}
    """, transposed=True),
)

PRESETS = {
    **presets("Radford 2019, table 2; openai-community/gpt2* config.json", gpt2, {
        "gpt2": dict(num_layers=12, d_model=768, num_heads=12),
        "gpt2-medium": dict(num_layers=24, d_model=1024, num_heads=16),
        "gpt2-large": dict(num_layers=36, d_model=1280, num_heads=20),
        "gpt2-xl": dict(num_layers=48, d_model=1600, num_heads=25),
    }),
    **tiny(gpt2, {"gpt2-tiny": dict(num_layers=2, num_heads=4)}),
}

FORMAT = Format(model_type="gpt2", architecture="GPT2LMHeadModel", keys=KEYS, rules=RULES, prefix="transformer.",
    # the causal mask, which older transformers stored as a buffer
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",), class_heads=OF_GPT)
FAMILY = Family("gpt2", PRESETS, FORMAT)
