"""The Vision Transformer (Dosovitskiy 2020)."""

from archetype import spec
from archetype.families.family import Family, sizes
from archetype.families.standard_block import standard_block


def vit(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    patch_size: int,
    image_size: int = 224,
    channels: int = 3,
    classes: int = 1000,
    d_ff: int | None = None,
    activation: spec.Activation = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    std: float = 0.02,
) -> spec.VisionEncoder:
    """An encoder of patches; the eps is that of the published configurations (the authors' code has 1e-6)."""
    norm = spec.LayerNorm(eps=eps)
    block = standard_block(
        wiring=spec.PreNorm(norm=norm),
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        activation=activation,
        attention_dropout=attention_dropout,
        dropout=dropout,
    )
    return spec.VisionEncoder(
        name=name,
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        d_model=d_model,
        embedding=spec.Embedding(position=spec.Learned(), dropout=dropout),
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        head=spec.ClassificationHead(classes=classes),
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "vit",
    {
        **sizes(
            "Dosovitskiy 2020, table 1; google/vit-* config.json, with ImageNet's 1,000 classes",
            vit,
            {
                "vit-b-16": dict(num_layers=12, d_model=768, num_heads=12, patch_size=16),
                "vit-l-16": dict(num_layers=24, d_model=1024, num_heads=16, patch_size=16),
                "vit-h-14": dict(num_layers=32, d_model=1280, num_heads=16, patch_size=14),
            },
        ),
        **sizes(
            "for tests and first trials: digits of 8 x 8 points",
            vit,
            {
                "vit-tiny": dict(
                    num_layers=2,
                    d_model=64,
                    num_heads=4,
                    patch_size=2,
                    image_size=8,
                    channels=1,
                    classes=10,
                    dropout=0.2,
                    std=0.1,
                )
            },
        ),
    },
)
