"""BERT (Devlin 2018), with the settings in which its descendants differ. Format: transformers' `bert`."""

from dataclasses import dataclass
from typing import Any

from archetype.families.classes import BARE, MASKED, SPANS, TEXTS, TOKENS, class_head, head_named, write_classes
from archetype.families.config import Config
from archetype.families.encoder_format import encoder_format
from archetype.families.family import Family, presets, tiny
from archetype.families.keys import Expected, Key, Row, Values, ignored
from archetype.families.standard_block import standard_block
from archetype.models.block.spec import PostNorm
from archetype.models.encoder.spec import Encoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import MaskedLanguageModelHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.pattern.spec import Full
from archetype.parts.position.spec import Learned
from archetype.roles.activation import Activation
from archetype.roles.head import Head
from archetype.roles.pattern import Pattern
from archetype.roles.position import EmbeddingPosition
from archetype.spec.repeats import cycle


def bert(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int | None = None,
    vocab_size: int = 30_522,
    context_length: int = 512,
    num_token_types: int = 2,
    activation: Activation | str = "gelu",
    head_activation: Activation | str | None = None,
    eps: float = 1e-12,
    position: EmbeddingPosition = Learned(),
    patterns: tuple[Pattern, ...] = (Full(),),
    qkv_bias: bool = True,
    embedding_scale: float = 1.0,
    head: Head | None = None,
    tied: bool = True,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    std: float = 0.02,
    **model: Any,
) -> Encoder:
    """Build a BERT encoder, by default with a masked language modelling head.

    `patterns` are cycled over the layers. `model` has additional fields of `spec.Encoder`.
    """
    # the paper gives no eps; 1e-12 is the `layer_norm_eps` of Google's configurations
    norm = LayerNorm(eps=eps)
    block = standard_block(
        wiring=PostNorm(norm=norm),
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        activation=activation,
        qkv_bias=qkv_bias,
        attention_dropout=dropout if attention_dropout is None else attention_dropout,
        dropout=dropout,
    )
    return Encoder(
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=Embedding(
            position=position, scale=embedding_scale, num_token_types=num_token_types, norm=norm, dropout=dropout
        ),
        layers=cycle(num_layers, *(block.replace(mixer=block.mixer.replace(pattern=pattern)) for pattern in patterns)),
        head=head or MaskedLanguageModelHead(activation=head_activation or activation, norm=norm, tied=tied),
        initialization=NormalInitialization(std=std),
        **model,
    )


@dataclass(frozen=True)
class HeadRow:
    """Row for the head and the pooler, given the class that the file names (default: masked language modelling head).

    Attributes:
        dropout: key of the dropout rate before the classifier.
        pooled: whether a model without a head has a pooler.
        activation: activation of the pooler before a classifier, or the argument that contains it.
        pretraining: whether the class `ForPreTraining`, with the masked language modelling head, exists.
        spans: whether the class for answer spans, with a linear layer, exists.
    """

    dropout: str = "classifier_dropout"
    pooled: bool = True
    activation: str = "tanh"
    pretraining: bool = True
    spans: bool = True

    def read(self, config: Config, values: Values) -> Values:
        further = (("ForPreTraining",) if self.pretraining else ()) + ((SPANS,) if self.spans else ())
        dropout = config.rate(self.dropout, values["dropout"])
        ending = head_named(config, MASKED, TEXTS, TOKENS, *further, BARE)
        head = class_head(config, ending, **({} if ending == SPANS else {"dropout": dropout}))
        if ending == TEXTS:
            activation = values.get(self.activation, self.activation)
            return {"head": head, "pooler": True, "pooler_activation": activation}
        return {} if head is None else {"head": head} | ({"pooler": self.pooled} if ending == BARE else {})

    def write(self, model: Any) -> dict[str, Any]:
        return write_classes(model)


# Keys shared by all formats of BERT's kind.
BODY_KEYS: tuple[Row, ...] = (
    # settings of a pooler that does not exist, and keys of Google's files
    ignored("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
        "pooler_type", "directionality", "output_past"),
    Expected("pruned_heads", {}, "pruned heads"),
    Expected("is_decoder", False, "a causal mask"),
    Expected("add_cross_attention", False, "cross-attention"),
    Expected("position_embedding_type", "absolute", "positions in attention"),
    Key("hidden_dropout_prob", "dropout", 0.1),
    Key("num_hidden_layers", "num_layers", 12),
    Key("hidden_size", "d_model", 768),
    Key("num_attention_heads", "num_heads", 12),
    Key("intermediate_size", "d_ff", 3072),
    Key("vocab_size", "vocab_size", 30_522),
    Key("max_position_embeddings", "context_length", 512),
    Key("type_vocab_size", "num_token_types", 2),
    Key("hidden_act", "activation", "gelu"),
    Key("layer_norm_eps", "eps", 1e-12, path="block.wiring.norm.eps"),
    Key("tie_word_embeddings", "tied", True),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Key("initializer_range", "std", 0.02),
)
DESIGN: tuple[Row, ...] = (*BODY_KEYS, HeadRow())
FAMILY = Family("bert", {
    **presets("Devlin 2018, section 3; google-bert/bert-*-uncased config.json", bert, {
        "bert-base": dict(num_layers=12, d_model=768, num_heads=12),
        "bert-large": dict(num_layers=24, d_model=1024, num_heads=16),
    }),
    **tiny(bert, {"bert-tiny": dict(num_layers=2, num_heads=4, vocab_size=257)}),  # 256 bytes and the mask
}, encoder_format("bert", "Bert", "bert", bert, DESIGN))
