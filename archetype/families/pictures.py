"""Image encoders of other transformers model types, each as a row with its differences from ViT."""

from functools import partial

from archetype.families.family import Family
from archetype.families.format import Format
from archetype.families.keys import Row, with_defaults
from archetype.families.vit import BODY_KEYS, HeadRow, vit, vit_format

BARE: tuple[Row, ...] = (*BODY_KEYS, HeadRow(pooled=False))
FORMATS: tuple[Format, ...] = (
    vit_format("deit", "DeiT", "deit", partial(vit, distillation_token=True)),
    vit_format("vit_msn", "ViTMSN", keys=with_defaults(BARE, layer_norm_eps=1e-6)),
    vit_format("ijepa", "IJepa", "ijepa", partial(vit, class_token=False), BARE),
)
FAMILIES = {format.model_type: Family(format.model_type, {}, format) for format in FORMATS}
