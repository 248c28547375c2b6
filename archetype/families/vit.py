"""The Vision Transformer (Dosovitskiy 2020), as transformers' `vit` writes it."""

from typing import Any

from archetype import spec
from archetype.families.classes import read_classes, write_classes
from archetype.families.config import Config, activation_name
from archetype.families.family import Family, presets
from archetype.families.format import Format, expect_kind
from archetype.families.rules import Rule, linear_rules, rule
from archetype.families.standard_block import standard_block
from archetype.spec.base import MAX_WIDE
from archetype.spec.layers import MAX_LAYERS


def vit(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    patch_size: int,
    image_size: int = 224,
    num_channels: int = 3,
    num_classes: int | None = 1000,
    pooler: bool = False,
    d_ff: int | None = None,
    activation: spec.Activation = "gelu",
    eps: float = 1e-12,
    qkv_bias: bool = True,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    std: float = 0.02,
) -> spec.VisionEncoder:
    """An encoder of patches, without a head where there are no `num_classes`.

    The eps is that of the published configurations (the authors' code has 1e-6).
    """
    norm = spec.LayerNorm(eps=eps)
    block = standard_block(
        wiring=spec.PreNorm(norm=norm),
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        activation=activation,
        attention_dropout=attention_dropout,
        dropout=dropout,
    )
    biases = spec.ProjectionBiases(q=qkv_bias, k=qkv_bias, v=qkv_bias, o=True)
    block = block.replace(mixer=block.mixer.replace(bias=biases))
    return spec.VisionEncoder(
        name=name,
        image_size=image_size,
        patch_size=patch_size,
        num_channels=num_channels,
        d_model=d_model,
        embedding=spec.Embedding(position=spec.Learned(), dropout=dropout),
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        pooler=pooler,
        head=spec.NoHead() if num_classes is None else spec.ClassificationHead(num_classes=num_classes),
        initialization=spec.NormalInitialization(std=std),
    )


def read(config: Config) -> spec.VisionEncoder:
    """config.json to specification."""
    d_model = config.size("hidden_size", 768)
    config.get("encoder_stride")  # of another head
    config.expect("pooler_output_size", d_model, "a pooler of another width")
    config.expect("pooler_act", "tanh", "another activation of the pooler")
    names = config.get("architectures") or ["ViTForImageClassification"]
    name = str(names[0]) if isinstance(names, list) else str(names)
    if not name.endswith(("ForImageClassification", "Model")):
        raise config.error("architectures", f"the head of {name} is not known here", "use a model for classes")
    bare = name.endswith("Model")
    return vit(
        num_layers=config.size("num_hidden_layers", 12, MAX_LAYERS),
        d_model=d_model,
        num_heads=config.size("num_attention_heads", 12),
        patch_size=_side(config, "patch_size", 16),
        image_size=_side(config, "image_size", 224),
        num_channels=config.size("num_channels", 3),
        num_classes=None if bare else read_classes(config),
        pooler=bare,
        d_ff=config.size("intermediate_size", 3072, MAX_WIDE),
        activation=config.activation("hidden_act", "gelu"),
        eps=config.positive("layer_norm_eps", 1e-12),
        qkv_bias=config.flag("qkv_bias", True),
        dropout=config.rate("hidden_dropout_prob", 0.0),
        attention_dropout=config.rate("attention_probs_dropout_prob", 0.0),
        std=config.positive("initializer_range", 0.02),
    )


def _side(config: Config, key: str, default: int) -> int:
    """The side of a square, which may be given as height and width."""
    match config.get(key):
        case [int(height), int(width)] if height == width:
            return Config({key: height}, config.place).size(key)
        case list() as given:
            raise config.error(key, f"{given!r} is no square", "pictures and patches are square here")
        case _:
            return config.size(key, default)


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    encoder = expect_kind(spec.VisionEncoder, model, "kind")
    block = encoder.layers[0]
    norm = expect_kind(spec.LayerNorm, encoder.final_norm, "final_norm")
    mixer = expect_kind(spec.Attention, block.mixer, "layers[0].mixer")
    feedforward = expect_kind(spec.MLP, block.feedforward, "layers[0].feedforward")
    return {
        "image_size": encoder.image_size,
        "patch_size": encoder.patch_size,
        "num_channels": encoder.num_channels,
        "hidden_size": encoder.d_model,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": mixer.num_heads,
        "intermediate_size": feedforward.width(encoder.d_model),
        "hidden_act": activation_name(feedforward.activation),
        "layer_norm_eps": norm.eps,
        "qkv_bias": mixer.bias.q,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": mixer.dropout,
        "initializer_range": getattr(encoder.initialization, "std", 0.02),
        **(write_classes(encoder.head) if isinstance(encoder.head, spec.ClassificationHead) else {}),
    }


def architecture(model: spec.ModelSpec) -> str:
    """The class that a model of some head is loaded with."""
    bare = isinstance(expect_kind(spec.VisionEncoder, model, "kind").head, spec.NoHead)
    return "ViTModel" if bare else "ViTForImageClassification"


def rules(model: spec.ModelSpec) -> tuple[Rule, ...]:
    """Patches are projected by a convolution, whose kernel is a matrix of the same numbers."""
    encoder = expect_kind(spec.VisionEncoder, model, "kind")
    kernel = (encoder.d_model, encoder.num_channels, encoder.patch_size, encoder.patch_size)
    patch = "vit.embeddings.patch_embeddings.projection"
    pairs = (
        ("attention.attention.query", "mixer.q"),
        ("attention.attention.key", "mixer.k"),
        ("attention.attention.value", "mixer.v"),
        ("attention.output.dense", "mixer.o"),
        ("layernorm_before", "mixer_norm"),
        ("intermediate.dense", "feedforward.up"),
        ("output.dense", "feedforward.down"),
        ("layernorm_after", "feedforward_norm"),
    )
    return (
        rule("vit.embeddings.cls_token", "embedding.class_token", shape=(1, 1, encoder.d_model)),
        rule(f"{patch}.weight", "embedding.patch.weight", shape=kernel),
        rule(f"{patch}.bias", "embedding.patch.bias"),
        rule(
            "vit.embeddings.position_embeddings",
            "embedding.position.weight",
            shape=(1, encoder.context_length, encoder.d_model),
        ),
        *linear_rules("vit.encoder.layer.{i}.", "blocks.{i}.", pairs),
        *linear_rules("vit.", "", [("layernorm", "final_norm"), ("pooler.dense", "pooler")]),
        *linear_rules("", "", [("classifier", "classifier")]),
    )


FAMILY = Family(
    "vit",
    {
        **presets(
            "Dosovitskiy 2020, table 1; google/vit-* config.json, with ImageNet's 1,000 classes",
            vit,
            {
                "vit-b-16": dict(num_layers=12, d_model=768, num_heads=12, patch_size=16),
                "vit-l-16": dict(num_layers=24, d_model=1024, num_heads=16, patch_size=16),
                "vit-h-14": dict(num_layers=32, d_model=1280, num_heads=16, patch_size=14),
            },
        ),
        **presets(
            "for tests and first trials: digits of 8 x 8 points",
            vit,
            {
                "vit-tiny": dict(
                    num_layers=2,
                    d_model=64,
                    num_heads=4,
                    patch_size=2,
                    image_size=8,
                    num_channels=1,
                    num_classes=10,
                    dropout=0.2,
                    std=0.1,
                )
            },
        ),
    },
    Format("vit", architecture, read, write, rules, "vit.", (r"(vit\.)?pooler\..*", r"vit\.embeddings\.mask_token")),
)
