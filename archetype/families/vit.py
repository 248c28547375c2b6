"""The Vision Transformer (Dosovitskiy 2020). Format: transformers' `vit`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from archetype.families.classes import read_classes, write_classes
from archetype.families.config import Config
from archetype.families.family import Family, presets
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Expected, Key, Row, Values, expect_kind, ignored
from archetype.families.rules import Rule, rule, weight_rules
from archetype.families.standard_block import standard_block
from archetype.models.block.spec import PreNorm
from archetype.models.initialization_spec import NormalInitialization
from archetype.models.spec import ModelSpec
from archetype.models.vision.spec import VisionEncoder
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import MLP
from archetype.parts.head.spec import ClassificationHead, NoHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Learned
from archetype.roles.activation import Activation
from archetype.spec.base import Spec
from archetype.spec.repeats import repeat


def vit(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_classes: int | None = 1000,
    d_ff: int | None = None,
    activation: Activation | str = "gelu",
    eps: float = 1e-12,
    qkv_bias: bool = True,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    std: float = 0.02,
    **model: Any,
) -> VisionEncoder:
    """Build an encoder of image patches, without a head if `num_classes` is None.

    `eps` defaults to the value in the published configurations (the authors' code has 1e-6). `model` has additional
    fields of `spec.VisionEncoder`.
    """
    norm = LayerNorm(eps=eps)
    block = standard_block(
        wiring=PreNorm(norm=norm),
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        activation=activation,
        qkv_bias=qkv_bias,
        attention_dropout=attention_dropout,
        dropout=dropout,
    )
    return VisionEncoder(
        d_model=d_model,
        embedding=Embedding(position=Learned(), dropout=dropout),
        layers=repeat(num_layers, block),
        final_norm=norm,
        head=NoHead() if num_classes is None else ClassificationHead(num_classes=num_classes),
        initialization=NormalInitialization(std=std),
        **({"image_size": 224, "num_channels": 3} | model),
    )


def _check_side(config: Config, name: str, default: int) -> int:
    # a file may give the height and width of a square
    match config.get(name):
        case [int(height), int(width)] if height == width:
            return Config({name: height}, config.place).size(name)
        case list() as sides:
            raise config.error(name, f"{sides!r} is not a square", "images and patches must be square")
        case _:
            return config.size(name, default)


@dataclass(frozen=True)
class HeadRow:
    """Row for the head and the pooler, given the class that the file names.

    Attributes:
        pooled: whether a model without a head has a pooler.
    """

    pooled: bool = True

    def read(self, config: Config, values: Values) -> Values:
        names = config.get("architectures") or ["ForImageClassification"]
        name = str(names[0]) if isinstance(names, list) else str(names)
        if not name.endswith(("ForImageClassification", "Model")):
            raise config.error("architectures", f"the head of {name} is not supported", "use a classification model")
        bare = name.endswith("Model")
        # the classifier reads the class token, without the pooler
        return {"num_classes": None if bare else read_classes(config), "pooler": bare and self.pooled}

    def write(self, model: Any) -> dict[str, Any]:
        return write_classes(model)


BODY_KEYS: tuple[Row, ...] = (
    ignored("encoder_stride"),  # of another head
    Key("hidden_size", "d_model", 768),
    Expected("pooler_output_size", itemgetter("d_model"), "a pooler of another width"),
    Expected("pooler_act", "tanh", "another activation of the pooler"),
    Key("num_hidden_layers", "num_layers", 12),
    Key("num_attention_heads", "num_heads", 12),
    Key("patch_size", "patch_size", 16, check=_check_side, path="patch_size"),
    Key("image_size", "image_size", 224, check=_check_side, path="image_size"),
    Key("num_channels", "num_channels", 3, path="num_channels"),
    Key("intermediate_size", "d_ff", 3072),
    Key("hidden_act", "activation", "gelu"),
    Key("layer_norm_eps", "eps", 1e-12),
    Key("qkv_bias", "qkv_bias", True),
    Key("hidden_dropout_prob", "dropout", 0.0),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.0),
    Key("initializer_range", "std", 0.02),
)
PARTS: dict[str, type[Spec]] = {"final_norm": LayerNorm, "block.mixer": Attention, "block.feedforward": MLP}


def _rules(base: str, model: ModelSpec) -> tuple[Rule, ...]:
    # transformers projects patches by a convolution, whose kernel is a matrix here
    encoder = expect_kind(VisionEncoder, model, "kind")
    kernel = (encoder.d_model, encoder.num_channels, encoder.patch_size, encoder.patch_size)
    positions, token = (1, encoder.context_length, encoder.d_model), (1, 1, encoder.d_model)
    return (
        rule(f"{base}.embeddings.cls_token", "embedding.class_token", shape=token),
        rule(f"{base}.embeddings.distillation_token", "embedding.distillation_token", shape=token),
        rule(f"{base}.embeddings.patch_embeddings.projection.weight", "embedding.patch.weight", shape=kernel),
        rule(f"{base}.embeddings.patch_embeddings.projection.bias", "embedding.patch.bias"),
        rule(f"{base}.embeddings.position_embeddings", "embedding.position.weight", shape=positions),
        *weight_rules("""
            BASE.encoder.layer.{i}.attention.attention.{query,key,value}   blocks.{i}.mixer.{q,k,v}
            BASE.encoder.layer.{i}.attention.output.dense      blocks.{i}.mixer.o
            BASE.encoder.layer.{i}.layernorm_{before,after}    blocks.{i}.{mixer_norm,feedforward_norm}
            BASE.encoder.layer.{i}.{intermediate,output}.dense   blocks.{i}.feedforward.{up,down}
            BASE.layernorm                                     final_norm
            BASE.pooler.dense                                  pooler
            classifier                                         classifier
        """.replace("BASE", base)),
    )


def vit_format(
    model_type: str,
    name: str,
    base: str = "vit",
    build: Callable[..., VisionEncoder] = vit,
    keys: tuple[Row, ...] = (*BODY_KEYS, HeadRow()),
) -> Format:
    """Build the format of a model type, with prefix `name` for classes and `base` for tensors below the head."""

    def architecture(model: ModelSpec) -> str:
        bare = isinstance(expect_kind(VisionEncoder, model, "kind").head, NoHead)
        return f"{name}Model" if bare else f"{name}ForImageClassification"

    table, left_out = ConfigTable(build, keys, VisionEncoder, PARTS), rf"({base}\.)?pooler\..*"
    # only used in masked image modelling
    mask = rf"{base}\.embeddings\.mask_token"
    return Format(model_type, architecture, table, partial(_rules, base), f"{base}.", (left_out, mask))


FAMILY = Family("vit", {
    **presets("Dosovitskiy 2020, table 1; google/vit-* config.json, with ImageNet's 1,000 classes", vit, {
        "vit-b-16": dict(num_layers=12, d_model=768, num_heads=12, patch_size=16),
        "vit-l-16": dict(num_layers=24, d_model=1024, num_heads=16, patch_size=16),
        "vit-h-14": dict(num_layers=32, d_model=1280, num_heads=16, patch_size=14),
    }),
    **presets("Steiner 2021, table 2 (d_model and heads of DeiT, Touvron 2020, table 1)", vit, {
        "vit-ti-16": dict(num_layers=12, d_model=192, num_heads=3, patch_size=16),
        "vit-s-16": dict(num_layers=12, d_model=384, num_heads=6, patch_size=16),
    }),
    **presets("for tests and first trials: digits of 8 x 8 points", vit, {
        "vit-tiny": dict(num_layers=2, d_model=64, num_heads=4, patch_size=2, image_size=8, num_channels=1,
            num_classes=10, dropout=0.2, std=0.1),
    }),
}, vit_format("vit", "ViT"))
